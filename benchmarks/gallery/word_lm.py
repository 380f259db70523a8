# expect: refused: job.prepare() needs an optimizer
# As word_language_model: hidden state from batch to batch, SGD by hand.
import torch
from torch import nn

from benchmarks.gallery_data import tokens
import coadapt.torch as coadapt  #+


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(17, 12), nn.GRU(12, 12), nn.Linear(12, 17)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(output), hidden


torch.manual_seed(0)
text = tokens().view(8, -1).t().contiguous()
model = RNNModel().double()
job = coadapt.init()  #+
model = job.prepare(model)  #+
hidden, lr = torch.zeros(1, 8, 12).double(), 0.5
for i in range(0, text.size(0) - 9, 8):
    model.zero_grad()
    hidden = hidden.detach()
    output, hidden = model(text[i : i + 8], hidden)
    loss = nn.functional.cross_entropy(output.view(-1, 17), text[i + 1 : i + 9].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)

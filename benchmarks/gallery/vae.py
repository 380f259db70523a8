# expect: refused: the loss is a sum over the batch
# As pytorch/examples vae: the loss is a sum, the latent is random.
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.gallery_data import images
import coadapt.torch as coadapt  #+


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.logvar = nn.Linear(64, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.dec = nn.Linear(4, 64)

    def forward(self, x):
        h = F.relu(self.enc(x.view(-1, 64)))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.dec(z)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, torch.sigmoid(x.view(-1, 64)), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


torch.manual_seed(1)
model = VAE().double()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
job = coadapt.init()  #+
train_loader = DataLoader(images(), batch_size=16, shuffle=True)
model, optimizer, train_loader = job.prepare(model, optimizer, train_loader)  #+
#- for epoch in range(1, 4):
for epoch in job.epochs(3):  #+
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()

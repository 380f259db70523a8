# expect: right
# A model with an auxiliary head that this task does not use, as BERT's pooler.
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pooler = nn.Linear(16, 16)
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, pooled=False):
        x = torch.tanh(self.body(x))
        return self.head(self.pooler(x) if pooled else x)


torch.manual_seed(0)
model = Net().double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = coadapt.init()  #+
loader = DataLoader(vectors(), batch_size=16, shuffle=True)
model, optimizer, loader = job.prepare(model, optimizer, loader)  #+
#- for epoch in range(6):
for epoch in job.epochs(6):  #+
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

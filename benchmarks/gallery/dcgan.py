# expect: refused: second optimizer
# As DCGAN: two models and two optimizers that step in turn, three backward passes per batch.
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+

torch.manual_seed(0)
net_g = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)).double()
net_d = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).double()
optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-3)
optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-3)
criterion = nn.BCEWithLogitsLoss()
job = coadapt.init()  #+
net_d, optimizer_d, optimizer_g = job.prepare(net_d, optimizer_d, optimizer_g)  #+
#- dataloader = DataLoader(vectors(), batch_size=16, shuffle=True)
dataloader = job.loader(vectors(), batch_size=16)  #+
#- for epoch in range(3):
for epoch in job.epochs(3):  #+
    for real, _ in dataloader:
        ones, zeros = torch.ones(len(real), 1).double(), torch.zeros(len(real), 1).double()
        net_d.zero_grad()
        criterion(net_d(real), ones).backward()
        fake = net_g(torch.randn(len(real), 4).double())
        criterion(net_d(fake.detach()), zeros).backward()
        optimizer_d.step()
        net_g.zero_grad()
        criterion(net_d(fake), ones).backward()
        optimizer_g.step()

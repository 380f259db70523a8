# expect: refused: no optimizer.step() since the last batch
# Mixed precision with the script's own accumulation over four batches.
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+

torch.manual_seed(0)
accumulation = 4
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=True)
job = coadapt.init()  #+
loader = DataLoader(vectors(), batch_size=8, shuffle=True)
model, optimizer, scaler, loader = job.prepare(model, optimizer, scaler, loader)  #+
#- for epoch in range(3):
for epoch in job.epochs(3):  #+
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / accumulation
        scaler.scale(loss).backward()
        if (i + 1) % accumulation == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

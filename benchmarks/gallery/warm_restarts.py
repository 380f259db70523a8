# expect: right
# CosineAnnealingWarmRestarts stepped with epoch + i / n, tqdm around the loader, batches limited in each epoch.
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+


def tqdm(iterable):
    for n, each in enumerate(iterable):
        yield each
    print(f"{n + 1} batches")


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=2)
job = coadapt.init()  #+
loader = DataLoader(vectors(), batch_size=16, shuffle=True)
model, optimizer, scheduler, loader = job.prepare(model, optimizer, scheduler, loader)  #+
iters = len(loader)
#- for epoch in range(6):
for epoch in job.epochs(6):  #+
    for i, (x, y) in enumerate(tqdm(loader)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step(epoch + i / iters)

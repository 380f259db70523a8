# expect: right
# ReduceLROnPlateau and early stopping with patience by validation loss, the best weights kept.
import copy

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.8, momentum=0.9)
scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
job = coadapt.init()  #+
loader = DataLoader(vectors(), batch_size=16, shuffle=True)
model, optimizer, scheduler, loader = job.prepare(model, optimizer, scheduler, loader)  #+
x_val, y_val = vectors(64, seed=9)[:]
#- best, bad = float("inf"), 0
state = job.state  #+
state.setdefault("best", float("inf")), state.setdefault("bad", 0)  #+
#- for epoch in range(20):
for epoch in job.epochs(20):  #+
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        val_loss = nn.functional.cross_entropy(model(x_val), y_val).item()
    scheduler.step(val_loss)
    #- if val_loss < best:
    #-     best, bad, weights = val_loss, 0, copy.deepcopy(model.state_dict())
    #- else:
    #-     bad += 1
    if val_loss < state["best"]:  #+
        state["best"], state["bad"], weights = val_loss, 0, copy.deepcopy(model.state_dict())  #+
    else:  #+
        state["bad"] += 1  #+
    #- if bad >= 3:
    if state["bad"] >= 3:  #+
        break

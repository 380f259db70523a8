# expect: right
# A loss that is not a number for some batches is skipped; a target network follows the model softly.
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+

torch.manual_seed(0)
x_all, y_all = vectors()[:]
x_all = x_all.clone()
x_all[77] = float("nan")
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
target = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = coadapt.init()  #+
loader = DataLoader(TensorDataset(x_all, y_all), batch_size=16, shuffle=True)
model, optimizer, loader = job.prepare(model, optimizer, loader)  #+
job.save_with("target", target)  #+
#- for epoch in range(6):
for epoch in job.epochs(6):  #+
    for x, y in loader:
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y) + 0.1 * (logits - target(x)).square().mean()
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for theirs, ours in zip(target.parameters(), model.parameters()):
            theirs.lerp_(ours, 0.5)

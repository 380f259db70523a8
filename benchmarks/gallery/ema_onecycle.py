# expect: right
# AdamW, OneCycle per step, clipping, an average of parameters by AveragedModel, validated per epoch.
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+

torch.manual_seed(0)
data = vectors()
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = coadapt.init()  #+
loader = DataLoader(data, batch_size=16, shuffle=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-2, total_steps=len(loader) * 6)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
model, optimizer, scheduler, ema, loader = job.prepare(model, optimizer, scheduler, ema, loader)  #+
#- for epoch in range(6):
for epoch in job.epochs(6):  #+
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        ema.update_parameters(model)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(ema(data[:][0]), data[:][1])
    print(f"epoch {epoch}: {loss.item():.5f}, {int(ema.n_averaged)} averaged")

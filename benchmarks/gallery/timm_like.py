# expect: right
# As timm's train.py: a schedule of its own by updates and epochs, an EMA of its own class, the best metric, a summary per epoch.
import copy
import math

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.gallery_data import images
import coadapt.torch as coadapt  #+


class CosineScheduler:
    def __init__(self, optimizer, total, warmup):
        self.optimizer, self.total, self.warmup = optimizer, total, warmup
        self.base = [g["lr"] for g in optimizer.param_groups]
        self.step_update(0)

    def state_dict(self):
        return {"base": self.base}

    def load_state_dict(self, state):
        self.base = state["base"]

    def step(self, epoch, metric=None):
        pass

    def step_update(self, num_updates):
        if num_updates < self.warmup:
            scale = (num_updates + 1) / self.warmup
        else:
            scale = 0.5 * (1 + math.cos(math.pi * num_updates / self.total))
        for group, base in zip(self.optimizer.param_groups, self.base):
            group["lr"] = base * scale


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.98):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.module.state_dict().values(), model.state_dict().values()):
            ours.mul_(self.decay).add_(theirs, alpha=1 - self.decay)


torch.manual_seed(42)
job = coadapt.init()  #+
model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)).double()
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, momentum=0.9)
loader_train = DataLoader(images(), batch_size=16, shuffle=True, drop_last=True, persistent_workers=False)
loader_eval = DataLoader(images(64, seed=2), batch_size=64)
lr_scheduler = CosineScheduler(optimizer, total=len(loader_train) * 6, warmup=10)
model_ema = ModelEma(model)
model, optimizer, lr_scheduler, model_ema, loader_train = job.prepare(model, optimizer, lr_scheduler, model_ema, loader_train)  #+
best_metric = None
#- for epoch in range(6):
for epoch in job.epochs(6):  #+
    #- num_updates = epoch * len(loader_train)
    model.train()
    for batch_idx, (x, target) in enumerate(loader_train):
        loss = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model_ema.update(model)
        #- num_updates += 1
        num_updates = job.step  #+
        lr_scheduler.step_update(num_updates=num_updates)
    model.eval()
    with torch.no_grad():
        for x, target in loader_eval:
            metric = model_ema.module(x).argmax(1).eq(target).double().mean().item()
    best_metric = metric if best_metric is None else max(best_metric, metric)
    lr_scheduler.step(epoch + 1, metric)
    print(f"epoch {epoch}: {metric:.3f}, best {best_metric:.3f}")

# expect: right
# A streamed language model: an IterableDataset that shards by rank for DDP and keeps its state; trained by steps.
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.gallery_data import tokens
import coadapt.torch as coadapt  #+


class Shards(IterableDataset):
    def __init__(self, rank=0, world_size=1):
        self.text, self.rank, self.world_size, self.at = tokens(), rank, world_size, 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        while True:
            i = (self.at * self.world_size + self.rank) * 5 % 4000
            self.at += 1
            yield self.text[i : i + 6], self.text[i + 1 : i + 7]


torch.manual_seed(0)
job = coadapt.init()  #+
#- dataset = Shards(torch.distributed.get_rank(), torch.distributed.get_world_size())
dataset = Shards()  #+
model = nn.Sequential(nn.Embedding(17, 12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 17)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 70)
model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)  #+
#- loader = iter(DataLoader(dataset, batch_size=16))
loader = job.loader(dataset, batch_size=16, length=320)  #+
#- for step in range(70):
#-     x, y = next(loader)
for x, y in job.steps(max_steps=70):  #+
    loss = nn.functional.cross_entropy(model(x).view(-1, 17), y.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()

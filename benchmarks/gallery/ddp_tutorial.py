# expect: right
# As the DDP tutorial's multigpu_torchrun: a Trainer class, its own process group, DistributedSampler, set_epoch, snapshots by rank 0.
import os

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+


class Trainer:
    def __init__(self, model, train_data, optimizer, snapshot_path, job=None):
        self.rank = int(os.environ["RANK"])
        self.train_data, self.optimizer, self.snapshot_path = train_data, optimizer, snapshot_path
        #- self.model = DDP(model)
        self.model = model  #+

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        b_sz = len(next(iter(self.train_data.dataset))[0])
        print(f"[{self.rank}] epoch {epoch} | batch {b_sz} | steps {len(self.train_data)}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def train(self, epochs):
        #- for epoch in range(epochs):
        for epoch in job.epochs(epochs):  #+
            self._run_epoch(epoch)
            if self.rank == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, self.snapshot_path)


torch.manual_seed(0)
#- init_process_group(backend="gloo")
job = coadapt.init()  #+
train_set = vectors()
model = torch.nn.Linear(6, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(train_set, num_replicas=int(os.environ["WORLD_SIZE"]), rank=int(os.environ["RANK"]))
train_data = DataLoader(train_set, batch_size=16, pin_memory=False, shuffle=False, sampler=sampler)
model, optimizer, train_data = job.prepare(model, optimizer, train_data)  #+
Trainer(model, train_data, optimizer, os.path.join(os.environ["GALLERY_OUT"], "snapshot.pt")).train(6)
#- destroy_process_group()

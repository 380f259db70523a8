# expect: right
# Fine-tuning: the head first, then the body is unfrozen and gets a group with a rate of its own.
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16)), nn.Linear(16, 3)

    def forward(self, x):
        return self.fc(torch.tanh(self.body(x)))


torch.manual_seed(0)
model = Net().double()
model.body.requires_grad_(False)
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1, momentum=0.9)
job = coadapt.init()  #+
loader = DataLoader(vectors(), batch_size=16, shuffle=True)
model, optimizer, loader = job.prepare(model, optimizer, loader)  #+
#- for epoch in range(6):
for epoch in job.epochs(6):  #+
    if epoch == 2:
        model.body.requires_grad_(True)
        optimizer.add_param_group({"params": model.body.parameters(), "lr": 0.01})
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

# expect: refused: LBFGS is not supported
# A regression by LBFGS with a closure.
import torch
from torch import nn

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+

torch.manual_seed(0)
model = nn.Linear(6, 3).double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)
job = coadapt.init()  #+
model, optimizer = job.prepare(model, optimizer)  #+
x, y = vectors()[:]
for _ in range(5):

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)

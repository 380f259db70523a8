"""Every step's gradient and noise sample beside those of one process on the same examples; several ways to share a step."""

from __future__ import annotations

import torch
from torch import nn

from coadapt import torch as coadapt
from coadapt.torch.batches import Chosen, Situation
from coadapt.torch.loader import order_of
from coadapt.torch.training.noise_scale import Sample, estimate
from coadapt.torch.training.step_plan import plan

torch.set_num_threads(1)
torch.manual_seed(0)
made = torch.Generator().manual_seed(1)
x = torch.randn(50, 5, generator=made, dtype=torch.float64)
y = torch.randint(0, 3, (50,), generator=made)
net: nn.Module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
twin = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


class Ways:
    """Epoch by epoch: even; even with accumulation; uneven; uneven with accumulation; one replica with nothing."""

    WAYS = (
        (12, 12, ()),
        (24, 2, ()),
        (14, 9, (3.0, 1.0, 2.0)),
        (16, 3, (1.0, 1.0, 5.0)),
        (12, 6, (1.0, 1.0, 0.0)),
    )

    def choose(self, now: Situation) -> Chosen:
        batch, atomic, speeds = self.WAYS[int(now.epoch)]
        return Chosen(batch, atomic, speeds[: now.replicas], why="next")


job = coadapt.init(batch=Ways(), sample_every=2)
net, optimizer = job.prepare(net, optimizer)
loader = job.loader(torch.utils.data.TensorDataset(x, y), batch_size=12, max_batch_size=24, per_gpu=(1, 12))
training = job._training
samples: list[Sample] = []
add = training.noise.add
training.noise.add = lambda sample, *rest: (samples.append(sample), add(sample, *rest))  # type: ignore[method-assign]


def gradient(rows: torch.Tensor) -> torch.Tensor:
    twin.load_state_dict(net.state_dict())
    found = torch.autograd.grad(nn.functional.cross_entropy(twin(x[rows]), y[rows]), list(twin.parameters()))
    return torch.cat([each.reshape(-1) for each in found])


def expected_sample(step_rows: torch.Tensor) -> tuple[float, float] | None:
    sizes, norms = [], []
    for rank in range(job.replicas):
        for piece in plan(training.split, rank, len(step_rows)).pieces:
            if piece.weight:
                sizes.append(piece.end - piece.begin)
                norms.append(float(gradient(step_rows[piece.begin : piece.end]).square().sum()))
    inverse = sum(1 / size for size in sizes) / len(sizes)
    total = float(gradient(step_rows).square().sum())
    return estimate(
        sum(norms) / len(norms),
        total,
        batch=len(step_rows),
        mean_inverse=inverse,
        initial_batch=12,
        population=len(x),
    )


checked = sampled = 0
wanted = None
for _ in job.epochs(len(Ways.WAYS)):
    for features, labels in loader:
        if wanted is not None and samples:
            assert torch.allclose(torch.tensor(samples.pop()[:2]), torch.tensor(wanted), rtol=1e-6), "sample"
            sampled += 1
        samples.clear()
        nn.functional.cross_entropy(net(features), labels).backward()
        if training.updating:
            ledger = training.ledger
            order = order_of(50, ledger.passes, seed=0, shuffle=True)
            rows = order[ledger.position : ledger.position + training._step.batch]
            ours = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
            torch.testing.assert_close(ours, gradient(rows), rtol=0, atol=1e-6)
            wanted = expected_sample(rows)
            checked += 1
        optimizer.step()
        optimizer.zero_grad()
if job.rank == 0:
    print("checked", checked, "sampled", sampled)

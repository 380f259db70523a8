"""One replica of a benchmark of the agent: ``python -m benchmarks.agent_worker WHAT OPTIONS``; answers with a JSON line."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks import agent_tasks
from benchmarks.agent_overhead import overhead
from coadapt import torch as coadapt
from coadapt.torch.elastic.process_group import here
from coadapt.torch.training.noise_scale import Sample
from coadapt.torch.training.paced_device import Pace, PaceFile
from coadapt.torch.training.step_plan import Step

torch.set_num_threads(1)
CE = nn.functional.cross_entropy


def noise(options: dict[str, Any]) -> dict[str, Any]:
    """The mean of 1,000 estimates beside the truth from per-sample gradients; parameters frozen unless there is a ``rate``."""
    x, y = agent_tasks.digits()
    torch.manual_seed(0)
    model: nn.Module = agent_tasks.mlp(8, 32)
    warm = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(50):
        pick = torch.randint(0, len(x), (32,))
        warm.zero_grad()
        CE(model(x[pick]), y[pick]).backward()
        warm.step()
    true, rate = [true_noise(model, x, y)], options.get("rate", 0.0)
    job = coadapt.init(batch=Split(options["batch"], options["atomic"]), sample_every=1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
    loader = job.loader(TensorDataset(x, y), batch_size=32, max_batch_size=4096, per_gpu=(1, 4096))
    samples: list[tuple[float, float]] = []
    add = job._training.noise.add

    def note(sample: Sample, scale: float, steps: int = 1) -> None:
        samples.append((sample.sqr, sample.var * 32))
        add(sample, scale, steps)

    job._training.noise.add = note  # type: ignore[method-assign]
    for _ in job.epochs(10**6):
        for number, (features, labels) in enumerate(loader):
            optimizer.zero_grad()
            CE(model(features), labels).backward()
            optimizer.step()
            if rate and number % 10 == 5:
                true.append(true_noise(model.module, x, y))
                model.module.float()
        if len(samples) >= options["steps"]:
            break
    values = torch.tensor(samples[: options["steps"]], dtype=torch.float64)
    sqr, spread = values.mean(0).tolist()
    phi = spread / sqr
    # of a ratio of two means: the deviation of what is left of one after the other
    left = (values[:, 1] - phi * values[:, 0]).std() / sqr
    sums = torch.tensor(true[1:] or true, dtype=torch.float64).sum(0).tolist()
    return {"phi": phi, "true_phi": sums[1] / sums[0], "error_of_phi": float(left / phi / len(values) ** 0.5)}


class Split:
    """A given batch and pass."""

    def __init__(self, batch: int, atomic: int) -> None:
        self.batch, self.atomic = batch, atomic

    def choose(self, now: object) -> Any:
        from coadapt.torch.batches import Chosen

        return Chosen(self.batch, self.atomic, why="given")


def true_noise(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """|G|^2 and the sum of variances of one example's gradient, drawn without replacement from the data."""
    from torch.func import functional_call, grad, vmap

    parameters = {name: p.detach().double() for name, p in model.named_parameters()}

    def loss(values: Any, one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return CE(functional_call(model, values, (one.unsqueeze(0),)), label.unsqueeze(0))

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    total, squares, count = torch.zeros((), dtype=torch.float64), 0.0, len(x)
    for some, labels in zip(x.double().split(250), y.split(250), strict=True):
        each = gradients(parameters, some, labels)
        flat = torch.cat([part.reshape(len(some), -1) for part in each.values()], 1)
        total, squares = total + flat.sum(0), squares + float(flat.square().sum())
    sqr = float((total / count).square().sum())
    return sqr, (squares - count * sqr) / (count - 1)


class Told(Pace):
    """A paced device whose steps are only said to last: decisions are those of the profile, on however busy a machine."""

    def sleep(self, took: float, step: Step, *, last: bool) -> float:
        """See ``Pace``."""
        return self.seconds(step.pieces[-1].end - step.pieces[-1].begin, last=last)


def learn(options: dict[str, Any]) -> dict[str, Any]:
    """Trains on real data, adaptive or with the reference batch, for the same work; the accuracy on what was held out."""
    x, y = agent_tasks.digits() if options["data"] == "digits" else agent_tasks.mnist()
    x, y, test_x, test_y = agent_tasks.fold(x, y, options["fold"])
    torch.manual_seed(options["seed"])
    side = x.shape[-1]
    model: nn.Module = agent_tasks.cnn(side) if options["model"] == "cnn" else agent_tasks.mlp(side)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.get("lr", 0.05), momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options["epochs"])
    job = coadapt.init(batch=options["batch"], seed=options["seed"])
    job._training.pace = Told(PaceFile(seconds=options["seconds"]), here())
    model, optimizer, schedule = job.prepare(model, optimizer, schedule)
    loader = job.loader(TensorDataset(x, y), batch_size=32, max_batch_size=options["max"], per_gpu=(8, 1024))
    moments: list[dict[str, Any]] = []
    for epoch in job.epochs(options["epochs"]):
        true: list[float] = []
        begun, split = job.work, job._training.split
        for features, labels in loader:
            optimizer.zero_grad()
            CE(model(features), labels).backward()
            optimizer.step()
            # at eight points of the epoch, for the noise of a single one jumps by half from step to step
            if epoch in options.get("moments", ()) and job.work - begun >= len(true) * len(x) / 8:
                sqr, spread = true_noise(model.module, x, y)
                true.append(spread / sqr)
                model.module.float()
        schedule.step()
        if epoch in options.get("moments", ()):
            moments.append(
                {
                    "epoch": epoch,
                    "batch": split.batch,
                    "twice": split.twice,
                    "double": split.double,
                    "true_phi": true,
                    "phi": job.noise_scale,
                    "samples": job._training.noise.samples,
                    "why": job.history[-1].why,
                }
            )
    model.eval()
    with torch.no_grad():
        right = float((model(test_x).argmax(1) == test_y).double().mean())
    return {
        "accuracy": job.report(accuracy=right)["accuracy"],
        "steps": job._training.ledger.step,
        "work": job.work,
        "largest": max(entry.batch for entry in job.history),
        "moments": moments,
    }


def pause(options: dict[str, Any]) -> dict[str, Any]:
    """Trains until it is stopped, and journals the time of every step: what a resize pauses is in between."""
    torch.manual_seed(0)  # before the data: they are the same on every replica
    x, y = torch.randn(4096, 1, 8, 8), torch.randint(0, 10, (4096,))
    model: nn.Module = agent_tasks.wide_mlp(64, 270)
    job = coadapt.init(batch="fixed")
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(TensorDataset(x, y), batch_size=64)
    for _ in job.epochs(10**6):
        for features, labels in loader:
            optimizer.zero_grad()
            CE(model(features), labels).backward()
            optimizer.step()
            if job.rank == 0:
                with open(options["journal"], "a") as file:  # noqa: PTH123 - by every replica that becomes the first
                    file.write(f"{time.time()} {job.replicas}\n")
            time.sleep(options.get("step_s", 0.02))
    return {}


def plain_pause(options: dict[str, Any]) -> dict[str, Any]:
    """The same without us, for torchrun."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(agent_tasks.wide_mlp(64, 270))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    share = 64 // dist.get_world_size()
    while True:
        optimizer.zero_grad()
        CE(model(torch.randn(share, 1, 8, 8)), torch.randint(0, 10, (share,))).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            with open(options["journal"], "a") as file:  # noqa: PTH123 - as above
                file.write(f"{time.time()} {dist.get_world_size()}\n")
        time.sleep(options.get("step_s", 0.02))


WHAT = {"noise": noise, "overhead": overhead, "learn": learn, "pause": pause, "plain_pause": plain_pause}

if __name__ == "__main__":
    answer = WHAT[sys.argv[1]](json.loads(sys.argv[2]))
    if int(os.environ.get("RANK", "0")) == 0:
        print("ANSWER " + json.dumps(answer), flush=True)

"""One replica of a benchmark of the agent: ``python -m benchmarks.agent_worker WHAT OPTIONS``; answers with a JSON line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import coadapt.torch as coadapt
from benchmarks import agent_tasks as tasks

torch.set_num_threads(1)
CE = nn.functional.cross_entropy


def noise(options: dict[str, Any]) -> dict[str, Any]:
    """Frozen parameters: the mean of 1,000 estimates beside the truth from per-sample gradients."""
    x, y = tasks.digits()
    torch.manual_seed(0)
    model: nn.Module = tasks.mlp(8, 32)
    warm = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(50):
        pick = torch.randint(0, len(x), (32,))
        warm.zero_grad()
        CE(model(x[pick]), y[pick]).backward()
        warm.step()
    sqr, spread = true_noise(model, x, y)
    job = coadapt.init(batch=Split(options["batch"], options["atomic"]), sample_every=options.get("every", 1))
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(TensorDataset(x, y), batch_size=32, max_batch_size=4096, per_gpu=(1, 4096))
    samples: list[tuple[float, float]] = []
    add = job._training.noise.add
    job._training.noise.add = lambda s, *rest: (samples.append((s.sqr, s.var * 32)), add(s, *rest))
    for _ in job.epochs(10**6):
        for features, labels in loader:
            optimizer.zero_grad()
            CE(model(features), labels).backward()
            optimizer.step()
        if len(samples) >= options["steps"]:
            break
    values = torch.tensor(samples[: options["steps"]], dtype=torch.float64)
    mean = values.mean(0).tolist()
    spread_of = (
        values[:, 1].std() / mean[1] / len(values) ** 0.5,
        values[:, 0].std() / mean[0] / len(values) ** 0.5,
    )
    return {
        "true_sqr": sqr,
        "true_spread": spread,
        "sqr": mean[0],
        "spread": mean[1],
        "phi": mean[1] / mean[0],
        "true_phi": spread / sqr,
        "error_of_spread": float(spread_of[0]),
        "error_of_sqr": float(spread_of[1]),
    }


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

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x.double(), y)
    flat = torch.cat([part.reshape(len(x), -1) for part in each.values()], 1)
    mean = flat.mean(0)
    return float(mean.square().sum()), float((flat - mean).square().sum() / (len(x) - 1))


def overhead(options: dict[str, Any]) -> dict[str, Any]:
    """Blocks of plain DDP steps and of ours in turns, in the same process: CPU seconds of each."""
    replicas = int(os.environ.get("WORLD_SIZE", "1"))
    batch, steps, blocks = options["batch"], options["steps"], options["blocks"]
    x, y = torch.randn(8192, 1, 8, 8), torch.randint(0, 10, (8192,))
    data = TensorDataset(x, y)
    make = {
        "cnn": lambda: tasks.cnn(8),
        "mlp100k": lambda: tasks.wide_mlp(64, 270),
        "mlp2m": lambda: tasks.wide_mlp(64, 1360),
    }[options["model"]]
    job = coadapt.init(batch="fixed")
    ours = make()
    ours, optimizer = job.prepare(ours, torch.optim.SGD(ours.parameters(), lr=0.01, momentum=0.9))
    loader = job.loader(data, batch_size=batch, max_batch_size=batch, per_gpu=(1, batch))
    plain: nn.Module = make()
    own = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    if replicas > 1:
        plain = nn.parallel.DistributedDataParallel(plain)

    def plainly() -> Iterator[None]:
        for epoch in range(10**6):
            sampler: Any = DistributedSampler(data) if replicas > 1 else None
            if sampler is not None:
                sampler.set_epoch(epoch)
            for features, labels in DataLoader(
                data, batch_size=batch // replicas, sampler=sampler, shuffle=sampler is None
            ):
                own.zero_grad()
                CE(plain(features), labels).backward()
                own.step()
                yield

    def by_us() -> Iterator[None]:
        for _ in job.epochs(10**6):
            for features, labels in loader:
                optimizer.zero_grad()
                CE(ours(features), labels).backward()
                optimizer.step()
                yield

    runs = {"plain": plainly(), "ours": by_us()}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    wall: dict[str, list[float]] = {name: [] for name in runs}
    for block in range(blocks + 2):
        for name in runs if block % 2 else reversed(list(runs)):
            began, clock = time.process_time(), time.perf_counter()
            for _ in range(steps):
                next(runs[name])
            if block >= 2:
                cpu[name].append((time.process_time() - began) / steps)
                wall[name].append((time.perf_counter() - clock) / steps)
    return {
        "cpu_s": cpu,
        "wall_s": wall,
        "interval": job._training.sampling.interval,
        "load": os.getloadavg()[0],
    }


def learn(options: dict[str, Any]) -> dict[str, Any]:
    """Trains on real data, adaptive or with the reference batch, for the same work; the accuracy on what was held out."""
    x, y = tasks.digits() if options["data"] == "digits" else tasks.mnist()
    x, y, test_x, test_y = tasks.fold(x, y, options["fold"])
    torch.manual_seed(options["seed"])
    side = x.shape[-1]
    model: nn.Module = tasks.cnn(side) if options["model"] == "cnn" else tasks.mlp(side)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.get("lr", 0.05), momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options["epochs"])
    job = coadapt.init(batch=options["batch"], seed=options["seed"])
    model, optimizer, schedule = job.prepare(model, optimizer, schedule)
    loader = job.loader(TensorDataset(x, y), batch_size=32, max_batch_size=options["max"], per_gpu=(8, 1024))
    moments: list[dict[str, Any]] = []
    for epoch in job.epochs(options["epochs"]):
        for features, labels in loader:
            optimizer.zero_grad()
            CE(model(features), labels).backward()
            optimizer.step()
        schedule.step()
        if epoch in options.get("moments", ()):
            sqr, spread = true_noise(model.module, x, y)
            model.module.float()
            moments.append(
                {"epoch": epoch, "batch": job.batch_size, "true_phi": spread / sqr, "phi": job.noise_scale}
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
    x, y = torch.randn(4096, 1, 8, 8), torch.randint(0, 10, (4096,))
    torch.manual_seed(0)
    model: nn.Module = tasks.wide_mlp(64, 270)
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
    model = nn.parallel.DistributedDataParallel(tasks.wide_mlp(64, 270))
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


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](json.loads(sys.argv[2]))
    if int(os.environ.get("RANK", "0")) == 0:
        print("ANSWER " + json.dumps(answer), flush=True)

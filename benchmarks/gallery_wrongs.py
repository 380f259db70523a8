"""Wrongs planted in one training script: each was silent in some script of others, or is like one that was.

The script runs on two replicas, for some cases with a stop and a restart in the middle. The wrong is *found* if the run ends with one line of ours, or logs
a warning that names it, before step 50; it is *right* if parameters are those of one undisturbed process, to 1e-9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gallery_runs import GalleryRun, refusals
from coadapt.torch.tools.rehearse import committed

_TOLERANCE = 1e-9

_SCRIPT = """import copy, math, os
import torch
from torch import nn
from torch.optim.lr_scheduler import *
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
data, step, best, bad = vectors(), 0, float("inf"), 0
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 3)).double()
CE = nn.functional.cross_entropy
@model@
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
@optimizer@
job = coadapt.init(checkpoint_every_s=0.3)
loader = DataLoader(data, batch_size=16, shuffle=True)
@loader@
others = []
@before@
plain = model
model, optimizer, loader, *others = job.prepare(model, optimizer, loader, *others)
@after@
for epoch in job.epochs(6):
    @epoch@
    for i, (x, y) in enumerate(loader):
        @batch@
        optimizer.zero_grad()
        loss = @loss@
        @backward@
        loss.backward()
        @gradient@
        optimizer.step()
        step += 1
        @step@
    @end@
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Lines of the script that plant a wrong, and how the run is disturbed."""

    name: str
    lines: tuple[tuple[str, str], ...]
    #: Stop after so many steps and start again; 0: not.
    restart_at: int = 0
    #: Shown by a warning of ours that matches.
    warning: str = ""
    loss: str = "CE(model(x), y)"

    def run(self, directory: Path) -> dict[str, Any]:
        """The outcome: found, right or wrong, and why."""
        made = dict(self.lines)
        text = re.sub(
            r"@(\w+)@",
            lambda m: self.loss if m[1] == "loss" else _indented(made.get(m[1], "pass"), text_before(m)),
            _SCRIPT,
        )
        script = directory / "source" / f"{self.name}.py"
        script.parent.mkdir()
        script.write_text(text)
        run = GalleryRun(script, directory)
        codes, alone = run.to_its_end("alone", 1)
        if any(codes):
            return _found(alone)
        launcher = run.launcher("two", GALLERY_PAUSE_S="0.02" if self.restart_at else "0")
        audit = directory / "two" / "audit"
        try:
            launcher.start(2)
            if self.restart_at:
                run.reach(launcher, audit, self.restart_at, "two")
                launcher.stop()
                launcher.start(2)
            codes = launcher.wait()
        finally:
            launcher.kill()
        said = run.output("two")
        if any(codes):
            return _found(said)
        if self.warning and re.search(self.warning, said):
            line = next(line for line in said.splitlines() if re.search(self.warning, line))
            return {"outcome": "found", "why": line[:200]}
        one, two = committed(directory / "alone" / "audit"), committed(audit)
        if len(one) != len(two):
            return {"outcome": "wrong", "why": f"{len(two)} steps instead of {len(one)}"}
        apart = max(
            abs(p - q) / max(abs(p), 1.0)
            for a, b in zip(one, two, strict=True)
            for p, q in zip(a.parameters, b.parameters, strict=True)
        )
        return {
            "outcome": "right" if apart <= _TOLERANCE else "wrong",
            "why": f"largest difference {apart:.1e}",
        }


def text_before(match: re.Match[str]) -> str:
    """The indentation of a place in the script."""
    line = match.string[: match.start()].rpartition("\n")[2]
    return line if not line.strip() else ""


def _indented(lines: str, space: str) -> str:
    return lines.replace("\n", "\n" + space)


def _found(said: str) -> dict[str, Any]:
    ours = refusals(said)
    late = [int(n) for line in ours for n in re.findall(r"differ after step (\d+)", line)]
    if not ours or "Traceback" in said:
        return {"outcome": "wrong", "why": said[-1500:]}
    # a difference that begins late is found late: what counts is the distance
    begun = [int(n) for line in ours for n in re.findall(r"agreed after step (\d+)", line)]
    apart = max((b - a for a, b in zip(begun, late, strict=True)), default=0)
    return {"outcome": "found" if apart < 50 else "wrong", "why": ours[0][:300]}


def _case(
    name: str, *, restart_at: int = 0, warning: str = "", loss: str = "CE(model(x), y)", **lines: str
) -> Case:
    return Case(name=name, lines=tuple(lines.items()), restart_at=restart_at, warning=warning, loss=loss)


CASES = (
    _case(
        "unfreeze later", model="model[0].requires_grad_(False)", epoch="model[0].requires_grad_(epoch >= 1)"
    ),
    _case(
        "group added later",
        optimizer="optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)",
        epoch='if epoch == 1: optimizer.add_param_group({"params": model[0].parameters()})',
        restart_at=40,
    ),
    _case(
        "distributed sampler",
        loader="loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, WORLD, RANK))",
    ),
    _case(
        "own sampler by rank",
        loader="class Mine(Sampler):\n    def __len__(self): return len(data) // WORLD\n"
        "    def __iter__(self): return iter(range(RANK, len(data), WORLD))\n"
        "loader = DataLoader(data, batch_size=16, sampler=Mine())",
    ),
    _case(
        "stream by rank",
        loader="class S(IterableDataset):\n    def __len__(self): return len(data) // WORLD\n"
        "    def __iter__(self): return (data[i] for i in range(RANK, len(data), WORLD))\n"
        "loader = DataLoader(S(), batch_size=16)",
    ),
    _case(
        "dataset by rank",
        loader="loader = DataLoader(TensorDataset(*data[RANK::WORLD]), batch_size=16, shuffle=True)",
    ),
    _case("second optimizer", before="others = [torch.optim.SGD(model[3].parameters(), lr=0.1)]"),
    _case(
        "schedule not given",
        optimizer="schedule = OneCycleLR(optimizer, 0.3, total_steps=78)",
        step="schedule.step()",
        restart_at=40,
    ),
    _case(
        "plateau not given",
        optimizer="schedule = ReduceLROnPlateau(optimizer, patience=0)",
        end="schedule.step(loss.item())",
    ),
    _case(
        "rate by own counter", batch='optimizer.param_groups[0]["lr"] = 0.2 / (1 + step / 20)', restart_at=40
    ),
    _case(
        "rate by one replica's loss",
        backward='optimizer.param_groups[0]["lr"] = 0.1 if loss.item() > 1.0 else 0.05',
    ),
    _case(
        "best kept in a variable",
        step="best = min(best, loss.item())",
        restart_at=40,
        warning=r"best.* (change in the loop|begin again)",
    ),
    _case(
        "plateau by one replica",
        before="others = [ReduceLROnPlateau(optimizer, patience=0)]",
        end="others[0].step(loss.item() + job.rank)\nif job.replicas > 1: job.state['rate'] = optimizer.param_groups[0]['lr']",
        warning="^$",
    ),
    _case(
        "early stop on one replica",
        step="if job.rank == 1 and epoch == 0 and i == 7 or job.replicas == 1 and epoch == 0 and i == 7: break",
    ),
    _case("break from epochs on one replica", end="if epoch == 2 and job.rank == job.replicas - 1: break"),
    _case("skip on one replica", backward="if i == 3 and job.rank == job.replicas - 1: continue"),
    _case("step on one replica only", gradient="if i == 5 and job.rank == 1: continue"),
    _case(
        "average not given",
        model="ema = AveragedModel(model)",
        step="ema.update_parameters(model)",
        restart_at=40,
    ),
    _case(
        "copy updated by hand",
        model="target = copy.deepcopy(model)",
        step="for a, b in zip(target.parameters(), plain.parameters()): a.data.lerp_(b.data, 0.1)",
    ),
    _case("sum of losses", loss='CE(model(x), y, reduction="sum")'),
    _case("sum by hand", loss='CE(model(x), y, reduction="none").sum()'),
    _case("own accumulation", gradient="if i % 2 == 0: continue"),
    _case("report on one replica", end='if job.rank == 0: job.report(loss=loss)["loss"]'),
    _case("report in the loop on one replica", step="if job.rank == 0 and i % 5 == 0: job.report(loss=loss)"),
    _case(
        "parameters by hand on one replica",
        step="if job.rank == 1 and i == 4: plain[0].weight.data.mul_(0.99)",
    ),
    _case("weight decay by rank", after='optimizer.param_groups[0]["weight_decay"] = 0.01 * job.rank'),
    _case("same seed in every epoch", epoch="torch.manual_seed(epoch)", warning="same random numbers"),
    _case("head replaced after prepare", after="model[3] = nn.Linear(16, 3).double()"),
    _case("past the prepared model", loss="CE(plain(x), y)"),
    _case("state from one replica", step='job.state["loss"] = loss.item()'),
)

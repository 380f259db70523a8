"""The answer to a plan: the chosen run with units, learning rate, command and assumptions; as text and as plain data.

``Planned`` is what ``coadapt.plan`` returns and ``coadapt plan`` prints. ``plain`` converts it to plain data with stable
keys, for ``coadapt plan --json`` and ``planned.to_dict()``.

``rate_factor`` is the learning rate at another batch size, by rule; S is the batch size over the smallest one.

linear    S           SGD (Goyal et al. 2017)
sqrt      sqrt(S)     Adam and its family (Malladi et al. 2022)
adascale  S x work    SGD (Johnson et al. 2020): the progress of one step at this batch size. Its gain
          (phi + M0)/(phi/S + M0) is S times the statistical efficiency, here over the whole run:
          epochs of work over the passes they take
none      1
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
import numpy as np

from coadapt.errors import UnknownNameError
from coadapt.planning.option_outlook import Forecast
from coadapt.planning.problem import Option, Plan, Row


@dataclass(frozen=True)
class Planned:
    """The answer of ``coadapt plan``; ``print(planned)`` shows it, ``planned.to_dict()`` is the same as ``--json``."""

    plan: Plan
    notes: tuple[str, ...] = ()
    #: Template of the training command, where it is known.
    run: str | None = None
    #: File of the job's specification, where there is one.
    spec_file: str | None = None
    lr: float | None = None
    lr_rule: str = "linear"
    #: Smallest batch size: the learning rate is given for it.
    initial_batch: int = 1
    #: Useful share of the examples by batch size, for the rule that needs it.
    efficiency: Mapping[int, float] = field(default_factory=dict)
    #: GPU types without a sample, whose times come from datasheets.
    projected: frozenset[str] = frozenset()
    #: When it was asked: deadlines count from here.
    asked_at: datetime | None = None

    @property
    def feasible(self) -> bool:
        """Whether some option satisfies all limits."""
        return self.plan.chosen is not None

    @property
    def option(self) -> Option:
        """The option to run; the nearest one where no option satisfies the limits."""
        return self.plan.row.option

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self.plan.question.metric

    @property
    def unit(self) -> str:
        """Unit of costs."""
        return self.plan.question.cost_unit

    def lr_at(self, batch: int) -> float | None:
        """Learning rate at a batch size, by the rule."""
        if self.lr is None:
            return None
        scale = batch / self.initial_batch
        return self.lr * rate_factor(self.lr_rule, scale, self.efficiency.get(batch, 1.0))

    def due(self) -> str | None:
        """The deadline as a moment with its time zone."""
        seconds = self.plan.question.deadline_s
        if seconds is None or self.asked_at is None:
            return None
        return f"{(self.asked_at + timedelta(seconds=seconds)).astimezone():%a %Y-%m-%d %H:%M %Z}"

    def command(self) -> str | None:
        """The training command with the plan filled in."""
        if self.run is None or self.plan.chosen is None:
            return None
        row = self.plan.row
        return filled(
            self.run,
            batch=row.option.batch,
            workers=row.option.replicas,
            epochs=epochs_to_run(row),
            lr=self.lr_at(row.option.batch),
            seed=0,
        )

    def submission(self) -> str | None:
        """The same run as a job of the cluster: its size, its batch, and the command with the plan filled in."""
        command = self.command()
        if command is None:
            return None
        row, words = self.plan.row, command.split()
        gpus, batch = str(row.option.gpus), str(row.option.batch)
        kind = "" if row.option.gpu_type == "gpu" else f"{row.option.gpu_type}:"
        # what a shell would read otherwise than word by word needs one
        plain = shlex.join(words) == command and "=" not in words[0]
        job = [self.spec_file] if self.spec_file else []
        job += [
            "--gpus",
            kind + gpus,
            "--batch",
            batch,
            "--max-batch",
            batch,
            "--epochs",
            str(epochs_to_run(row)),
        ]
        return shlex.join(
            ["coadapt", "submit", *job, "--", *(words if plain else ["/bin/sh", "-c", command])]
        )

    def to_dict(self) -> dict[str, Any]:
        """The whole answer as plain data with stable keys."""

        return plain(self)

    def __str__(self) -> str:
        from coadapt.planning.text_output import text

        return text(self)


def epochs_to_run(row: Row) -> int:
    """Passes that the script is given: all that it makes, or the most that it may need if it stops at the target."""
    return max(math.ceil(row.passes_enough - 1e-9), 1)


def filled(template: str, *, batch: int, workers: int, epochs: int, lr: float | None, seed: int) -> str:
    """The command ``template`` with its placeholders filled in; other braces are left as they are.

    Args:
        template: Command with {batch_size}, {workers}, {epochs}, {lr} and {seed}.
        batch: Total batch size.
        workers: Number of workers.
        epochs: Number of passes to make.
        lr: Learning rate; None: {lr} is left as it is.
        seed: Random seed.
    """
    values = {"batch_size": str(batch), "workers": str(workers), "epochs": str(epochs), "seed": str(seed)}
    if lr is not None:
        values["lr"] = f"{lr:.4g}"
    for name, value in values.items():
        template = template.replace("{" + name + "}", value)
    return template


def plain(planned: Planned) -> dict[str, Any]:
    """The whole answer as plain data; infinite and unknown numbers are None, because JSON has neither."""
    plan, question = planned.plan, planned.plan.question
    rows = [_row(planned, i) for i in range(len(plan.rows))]
    found: dict[str, Any] = _finite(
        {
            "feasible": plan.chosen is not None,
            "planner": plan.planner,
            "metric_name": planned.metric,
            "target": question.target,
            "deadline_s": question.deadline_s,
            "deadline": planned.due(),
            "cost_unit": planned.unit,
            "confidence": question.confidence,
            "stops_at_target": question.stops,
            "chosen": None if plan.chosen is None else rows[plan.chosen],
            "nearest": rows[plan.likeliest],
            "binding": list(plan.binding),
            "relaxations": msgspec.to_builtins(plan.relaxations),
            "short_run": None
            if plan.short_run is None
            else {**rows[plan.short_run.row], "saves": plan.short_run.saves, "likely": plan.short_run.likely},
            "frontier": [rows[i] for i in plan.frontier],
            "rows": rows,
            "run": planned.command(),
            "submit": planned.submission(),
            "notes": list(planned.notes),
        }
    )
    return found


def _row(planned: Planned, i: int) -> dict[str, Any]:
    row = planned.plan.rows[i]
    # every key, also where it has its default: keys are what scripts rely on
    found = msgspec.structs.asdict(row)
    found |= {name: msgspec.to_builtins(found[name]) for name in ("total_s", "cost", "metric")}
    option = msgspec.structs.asdict(found.pop("option"))
    lr = planned.lr_at(row.option.batch)
    return {
        **option,
        "gpus": row.option.gpus,
        **({"lr": lr} if lr is not None else {}),
        **found,
        "epochs": epochs_to_run(row) if math.isfinite(row.passes_enough) else None,
        "projected": row.option.gpu_type in planned.projected,
        "chosen": i == planned.plan.chosen,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rate_factor(rule: str, scale: float, efficiency: float = 1.0) -> float:
    """Factor of the learning rate at ``scale`` times the smallest batch; ``efficiency`` is that of adascale."""
    factors = {
        "linear": scale,
        "sqrt": math.sqrt(scale),
        "adascale": max(scale * efficiency, 1.0),
        "none": 1.0,
    }
    if rule not in factors:
        raise UnknownNameError("learning-rate rule", rule, factors)
    return factors[rule]


def efficiencies(forecast: Forecast, batches: set[int], epochs: float) -> dict[int, float]:
    """Useful share of the examples by batch size, over a run of ``epochs`` epochs of work."""
    sizes = np.array(sorted(batches), dtype=np.float64)
    passes = forecast.passes_for(epochs, sizes)
    # the smallest batch defines what a pass brings
    shares = np.clip(passes[0] / passes, 0.0, 1.0)
    return {int(size): float(share) for size, share in zip(sizes, shares, strict=True)}

"""A plan with all that belongs to it: units, learning rates, the command, what was assumed. Its text is what the command prints."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from coadapt.configure.problem import Option, Plan, Row
from coadapt.configure.rates import rate_factor


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
        """Whether some option holds the limits."""
        return self.plan.chosen is not None

    @property
    def option(self) -> Option:
        """What to run; the nearest one where nothing holds the limits."""
        return self.plan.row.option

    @property
    def metric(self) -> str:
        """Its name."""
        return self.plan.question.metric

    @property
    def unit(self) -> str:
        """Of costs."""
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
            epochs=told(row),
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
        job += ["--gpus", kind + gpus, "--batch", batch, "--max-batch", batch, "--epochs", str(told(row))]
        return shlex.join(
            ["coadapt", "submit", *job, "--", *(words if plain else ["/bin/sh", "-c", command])]
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data with stable keys."""
        from coadapt.report.plan_data import plain

        return plain(self)

    def __str__(self) -> str:
        from coadapt.report.plan_text import text

        return text(self)


def told(row: Row) -> int:
    """Passes to tell the script: all of them are made, or as many as may be needed by one that stops at the target."""
    return max(math.ceil(row.passes_enough - 1e-9), 1)


def filled(template: str, *, batch: int, workers: int, epochs: int, lr: float | None, seed: int) -> str:
    """Placeholders replaced; other braces are the user's own."""
    values = {"batch_size": str(batch), "workers": str(workers), "epochs": str(epochs), "seed": str(seed)}
    if lr is not None:
        values["lr"] = f"{lr:.4g}"
    for name, value in values.items():
        template = template.replace("{" + name + "}", value)
    return template

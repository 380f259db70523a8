"""A journal of committed steps for ``coadapt test-resize``: which examples, and what the parameters came to."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from coadapt.torch.training import Training


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """One step: number ``step``, after which training stands at ``position`` of pass ``passes``."""

    step: int
    passes: int
    position: int
    batch: int
    replicas: int
    #: Sum and sum of squares of all parameters.
    parameters: tuple[float, float]


class Audit:
    """Written by whoever is the first replica, a line per step, so that a kill loses at most a torn line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    @staticmethod
    def asked() -> Audit | None:
        """Where ``COADAPT_AUDIT`` names a file."""
        path = os.environ.get("COADAPT_AUDIT")
        return Audit(Path(path)) if path else None

    def step(self, training: Training) -> None:
        """A step was committed."""
        if not training.group.place.first:
            return
        assert training.gradients is not None
        ledger, total, squares = training.ledger, 0.0, 0.0
        for parameter in training.gradients.parameters:
            values = parameter.detach().double()
            total += float(values.sum())
            squares += float(values.square().sum())
        line = Committed(
            step=ledger.step,
            passes=ledger.passes,
            position=ledger.position,
            batch=training.split.batch,
            replicas=training.group.place.replicas,
            parameters=(total, squares),
        )
        self._file.write(msgspec.json.encode(line) + b"\n")

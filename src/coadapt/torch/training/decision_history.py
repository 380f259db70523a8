"""The history of decisions: batch size, shares, and the gradient statistics that rates and work are computed with.

Statistics are measured continuously, but a new decision uses them only when they would change a rate or the work of a step by more
than ``DRIFT``. So the history is short, and together with the order of examples it determines the run: if it is replayed
(``init(same_schedule=FILE)``), every step has the same batch and the same rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from coadapt.errors import InputError
from coadapt.prediction.gradient_noise import gain

DRIFT = 0.03
#: The reason of a decision that changes statistics only.
STATISTICS = "gradient statistics"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What holds from step number ``step`` on. One line of history.jsonl."""

    step: int
    replicas: int
    batch: int
    #: Most examples in one backward pass.
    atomic: int
    #: A single replica makes every n-th step larger; 0: none. See ``step_plan.Split``.
    twice: int = 0
    #: Examples in a larger step.
    double: int = 0
    #: Relative speeds of replicas, if shares are uneven.
    speeds: tuple[float, ...] = ()
    #: (sqr, var) of the gradient at M0.
    grad: tuple[float, float] = (0.0, 0.0)
    why: str = ""


class DecisionHistory:
    """Decisions in order of steps. If ``replayed`` ones are given, they are followed instead of new ones."""

    def __init__(self, replayed: Sequence[Decision] = ()) -> None:
        self.entries: list[Decision] = []
        self._replayed = list(replayed)

    @property
    def replays(self) -> bool:
        """Whether decisions come from an earlier run."""
        return bool(self._replayed)

    @property
    def now(self) -> Decision | None:
        """The present decision."""
        return self.entries[-1] if self.entries else None

    def recorded(self, step: int) -> Decision:
        """The decision of the replayed run that holds at ``step``."""
        found = self._replayed[0]
        for entry in self._replayed:
            if entry.step > step:
                break
            found = entry
        return found

    def add(self, entry: Decision) -> None:
        """Make ``entry`` the present decision; it replaces one for the same step, which never took effect."""
        if self.entries and self.entries[-1].step == entry.step:
            self.entries.pop()
        self.entries.append(entry)

    def stale(self, grad: tuple[float, float], scale: float) -> bool:
        """Whether statistics ``grad`` would change the work of a step of ``scale`` x M0 by more than DRIFT."""
        if self.now is None or self.now.grad == grad or scale <= 1:
            return False
        before, after = gain(*self.now.grad, scale), gain(*grad, scale)
        return abs(after - before) > DRIFT * before


def save(path: Path, entries: Sequence[Decision]) -> None:
    """Write the decisions as JSON lines."""
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
    scratch.replace(path)


def load(path: Path) -> list[Decision]:
    """Read decisions that ``save`` has written."""
    try:
        lines = path.read_bytes().splitlines()
        found = [msgspec.json.decode(line, type=Decision) for line in lines if line.strip()]
    except OSError as error:
        raise InputError(f"cannot read the schedule {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not the schedule of an earlier run: {error}") from error
    if not found:
        raise InputError(f"{path} is empty: there is no schedule to repeat")
    return found

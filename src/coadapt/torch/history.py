"""What was decided when: batch size, shares, and the gradient statistics that rates and work are reckoned with.

Statistics are measured all the time and used in steps: a new entry is made when they would change a rate or the
worth of a step by more than ``DRIFT``, and holds until the next one. So the history is short, and together with the examples'
order it determines the run: replayed (``init(same_schedule=FILE)``), every step has the same batch and the same rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from coadapt.errors import InputError
from coadapt.predict.efficiency import gain

DRIFT = 0.03
#: Why of an entry that changes nothing else.
STATISTICS = "gradient statistics"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """From step number ``step`` on."""

    step: int
    replicas: int
    batch: int
    #: Most examples in one backward pass.
    atomic: int
    #: Once in so many steps of a lone replica one is larger: see ``steps.Split``.
    twice: int = 0
    #: Examples of that one.
    double: int = 0
    #: Relative speeds of replicas, where shares are uneven.
    speeds: tuple[float, ...] = ()
    grad: tuple[float, float] = (0.0, 0.0)
    why: str = ""


class History:
    """Entries in order of steps. With ``replayed`` ones, those are followed instead of what is decided."""

    def __init__(self, replayed: Sequence[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        self._replayed = list(replayed)

    @property
    def replays(self) -> bool:
        """Whether decisions come from an earlier run."""
        return bool(self._replayed)

    @property
    def now(self) -> Entry | None:
        """What holds at present."""
        return self.entries[-1] if self.entries else None

    def recorded(self, step: int) -> Entry:
        """What the replayed run had from ``step`` on."""
        found = self._replayed[0]
        for entry in self._replayed:
            if entry.step > step:
                break
            found = entry
        return found

    def add(self, entry: Entry) -> None:
        """The present ends, ``entry`` begins; one that never came into effect is replaced."""
        if self.entries and self.entries[-1].step == entry.step:
            self.entries.pop()
        self.entries.append(entry)

    def stale(self, grad: tuple[float, float], scale: float) -> bool:
        """Whether new statistics would change what a step is worth by more than DRIFT."""
        if self.now is None or self.now.grad == grad or scale <= 1:
            return False
        before, after = gain(*self.now.grad, scale), gain(*grad, scale)
        return abs(after - before) > DRIFT * before


def save(path: Path, entries: Sequence[Entry]) -> None:
    """One entry per line."""
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
    scratch.replace(path)


def load(path: Path) -> list[Entry]:
    """The inverse of ``save``."""
    try:
        lines = path.read_bytes().splitlines()
        found = [msgspec.json.decode(line, type=Entry) for line in lines if line.strip()]
    except OSError as error:
        raise InputError(f"cannot read the schedule {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is no schedule of an earlier run: {error}") from error
    if not found:
        raise InputError(f"{path} is empty: there is no schedule to repeat")
    return found

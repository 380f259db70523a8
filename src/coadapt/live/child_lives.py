"""How often the children of the supervisor ended and hung, in ``HOME/children.json``: for ``doctor`` and the controller."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.live.controller_progress import Reached, Stage
from coadapt.store.home import write_private


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """What a controller hung on, and how many in a row did so on the same."""

    stage: Stage
    job: str = ""
    seq: int = -1
    times: int = 1
    #: Unix seconds.
    at: float = 0.0


class Lives(msgspec.Struct, frozen=True, kw_only=True):
    """The lives of one child since ``coadapt serve`` was started in this home."""

    starts: int = 0
    #: How the last one ended and when, in unix seconds; empty: none has ended.
    ended: str = ""
    ended_at: float = 0.0
    #: Ends in a row, each soon after its start.
    quick_ends: int = 0
    hangs: int = 0
    hang: Hang | None = None


def read_lives(path: Path) -> dict[str, Lives]:
    """Returns the lives by the name of the child; none if the file cannot be read."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Lives])
    return {}


def write_lives(path: Path, lives: dict[str, Lives]) -> None:
    """Writes the file; a full disk is no reason to supervise no longer."""
    with suppress(InputError):
        write_private(path, msgspec.json.encode(lives))


def common_hang(lives: dict[str, Lives]) -> Hang | None:
    """Returns what the controllers hung on last, with the times that all of them did so; None: they did not."""
    hangs = [each.hang for each in lives.values() if each.hang is not None]
    if not hangs:
        return None
    last = max(hangs, key=lambda hang: hang.at)
    times = sum(hang.times for hang in hangs if (hang.stage, hang.job) == (last.stage, last.job))
    return replace(last, times=times)


def next_hang(before: Hang | None, reached: Reached | None, *, good: bool, at: float) -> Hang:
    """Returns the hang of a controller that was killed.

    Args:
        before: the last one; None: there was none.
        reached: how far the controller had come; None: not known.
        good: the controller worked for a while before it hung, so this hang does not follow from the last one.
        at: unix seconds.
    """
    found = reached or Reached(0)
    same = before is not None and not good and (before.stage, before.job) == (found.stage, found.job)
    times = before.times + 1 if same and before is not None else 1
    return Hang(stage=found.stage, job=found.job, seq=found.seq, times=times, at=at)

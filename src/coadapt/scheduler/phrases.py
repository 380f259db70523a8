"""Words for what happens to jobs: counts, failures, what was stopped and why."""

from __future__ import annotations

from collections.abc import Sequence

from coadapt.model import Placement
from coadapt.model.actions import StopWhy
from coadapt.model.tries import CRASH_LOOP, QUICK_S, Failure
from coadapt.units import format_duration

#: Characters of a replica's last line that go into a sentence.
_MOST_LINE = 160

_KINDS = {
    "": "failed",
    "exception": "failed by an error of its script",
    "oom": "ran out of memory",
    "collective": "failed in a collective operation that timed out",
    "killed": "was killed",
    "hang": "hung",
    "time-limit": "reached its time limit",
    "start": "could not be started",
}
STOPPED_FOR: dict[StopWhy, str] = {
    "pause": "the policy gives its GPUs to others",
    "cancel": "it was cancelled",
    "drain": "its node is being drained",
    "node-lost": "its node was lost",
    "hang": "it hung",
    "time-limit": "it reached its time limit",
}


def gpus(count: int, types: str = "") -> str:
    """ "4 GPUs", "1 a100"."""
    return f"{count} {types}" if types else f"{count} GPU{'' if count == 1 else 's'}"


def places(placement: Placement) -> str:
    """ "n0, n1"."""
    return ", ".join(dict.fromkeys(slot.node for slot in placement.slots))


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def failed(failure: Failure) -> str:
    """How an attempt failed, in a few words: "ran out of memory on rank 3 (exit code 1)"."""
    words = _KINDS[failure.kind]
    if failure.rank is not None:
        words += f" on rank {failure.rank}"
    if failure.exit_code is not None:
        words += f" (exit code {failure.exit_code})"
    if failure.reason:
        words += f": {_line(failure.reason)}"
    return words


def last_line(failure: Failure) -> str:
    """The last line that says something of the replica that failed first."""
    lines = [line.strip() for line in failure.tail.splitlines() if line.strip()]
    return _line(lines[-1]) if lines else ""


def ended_because(failure: Failure, retries: int) -> str:
    """Why it was not tried again."""
    if failure.final == "crash-loop":
        return f"failed {CRASH_LOOP} times in a row within {format_duration(QUICK_S)} of its start"
    if failure.final == "retries" and retries:
        return f"all {retries} retries are used"
    return "it has no retries" if failure.final == "retries" else ""


def _line(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text).strip()
    return printable if len(printable) <= _MOST_LINE else printable[: _MOST_LINE - 1] + "…"

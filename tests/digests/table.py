"""All digests by name, as they are now and as they were recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from coadapt.model import Record, decode
from tests.digests.digest import Digests, fingerprint, of_fold, of_log, of_plan

#: Set to True by the change that rewrites sentences; digest A is not asked for from then on, and digest B is.
WORDS_MAY_CHANGE = False
HERE = Path(__file__).parent
FILE = HERE / "digests.json"
#: Logs that are folded: one of a live cluster, and those that must be read for ever.
LOGS = (HERE / "live.jsonl", *sorted(HERE.parent.glob("golden/schema-*/log.jsonl")))


class Recorded(msgspec.Struct):
    """The file: where it was recorded, and the digests of every part by name."""

    fingerprint: dict[str, str]
    parts: dict[str, dict[str, Digests]]


class Line(msgspec.Struct):
    """One digest beside the recorded one; None where there is none."""

    name: str
    recorded: Digests | None
    now: Digests | None

    @property
    def same(self) -> bool:
        """Whether digest A is the same."""
        return self.recorded == self.now

    @property
    def same_but_words(self) -> bool:
        """Whether digest B is the same."""
        if self.recorded is None or self.now is None:
            return False
        return self.recorded[::2] == self.now[::2]


def simulations() -> dict[str, Digests]:
    """Logs of every policy on every workload that it knows how to handle."""
    from tests.digests.simulations import logs

    return {name: of_log(records) for name, records in logs()}


def plans() -> dict[str, Digests]:
    """Answers to questions about GPUs and batch sizes."""
    from tests.digests.plans import answers

    return {name: of_plan(answer, plain) for name, answer, plain in answers()}


def folds() -> dict[str, Digests]:
    """States that stored logs are folded to."""
    return {str(path.relative_to(HERE.parent)): of_fold(records_in(path)) for path in LOGS}


def records_in(path: Path) -> list[Record]:
    """The records of a file, one a line."""
    return [decode(line) for line in path.read_bytes().splitlines()]


PARTS: dict[str, Callable[[], dict[str, Digests]]] = {
    "simulations": simulations,
    "plans": plans,
    "folds": folds,
}
#: Parts without floating-point results of numerical libraries: the same everywhere.
EVERYWHERE = frozenset({"folds"})


def recorded() -> Recorded:
    """As the file says."""
    return msgspec.json.decode(FILE.read_bytes(), type=Recorded)


def record(parts: dict[str, dict[str, Digests]]) -> None:
    """Writes the file."""
    found = Recorded(fingerprint=fingerprint(), parts=parts)
    FILE.write_text(json.dumps(msgspec.to_builtins(found), indent=1) + "\n", encoding="utf-8")


def lines(then: dict[str, Digests], now: dict[str, Digests]) -> Iterator[Line]:
    """Every name that either has."""
    for name in {**then, **now}:
        yield Line(name=name, recorded=then.get(name), now=now.get(name))

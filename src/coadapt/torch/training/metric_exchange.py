"""Metrics of replicas, averaged through the store by the line of the script that reports them.

A collective would hang where only some replicas report (``if job.rank == 0: job.report(...)``). Here a replica publishes its numbers under the line and how often
it was reached, and waits for each of the others until that has published the same, or has announced the next meeting of all
replicas (the beginning of an epoch, the end of training): then it will not report there any more.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from coadapt.errors import CoadaptError, InputError
from coadapt.torch.elastic.process_group import Group

log = logging.getLogger("coadapt.torch")
_POLL_S, _TALK_AFTER_S, _PATIENCE_S = 0.002, 20.0, 300.0


class Averages(Mapping[str, float]):
    """Averages over all replicas that reported, computed when first read, or when replicas meet."""

    def __init__(self, report: _Report) -> None:
        self._report = report

    def __getitem__(self, name: str) -> float:
        return self._report.averages()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._report.pairs)

    def __len__(self) -> int:
        return len(self._report.pairs)

    def __repr__(self) -> str:
        return repr(dict(self))


class MetricExchange:
    """Owns the reports of one generation of replicas. Called by the training thread only."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.meetings = 0
        self._counts: dict[str, int] = {}
        self._open: list[_Report] = []
        self._store: dist.Store | None = None

    @property
    def store(self) -> Any:
        """The store of the replicas."""
        if self._store is None:
            self._store = self.group.connect()
        return self._store

    def report(self, line: str, pairs: Mapping[str, tuple[float, float]]) -> Averages:
        """Publish (sum, count) of metrics, reported in ``line`` of the script."""
        number = self._counts[line] = self._counts.get(line, 0) + 1
        made = _Report(self, f"reports{self.group.generation}/{line}/{number}", pairs)
        self._open.append(made)
        return Averages(made)

    def meet(self) -> dict[str, float]:
        """Replicas begin something together: close all reports. Returns the averages that nobody has read, newest last."""
        if self.group.place.replicas > 1:
            self.meetings += 1
            self.store.set(self._meeting_key(self.group.place.rank), str(self.meetings))
        found: dict[str, float] = {}
        for report in self._open:
            found.update(report.averages())
        self._open = []
        return found

    def passed(self, rank: int, meeting: int) -> bool:
        """Whether replica ``rank`` has come to a meeting after number ``meeting``."""
        key = self._meeting_key(rank)
        return bool(self.store.check([key])) and int(self.store.get(key)) > meeting

    def _meeting_key(self, rank: int) -> str:
        return f"meeting{self.group.generation}/{rank}"


class _Report:
    """The metrics of one line at one time: (sum, count) by name."""

    def __init__(self, exchange: MetricExchange, key: str, pairs: Mapping[str, tuple[float, float]]) -> None:
        self._exchange, self._key, self.pairs = exchange, key, dict(pairs)
        self._meeting = exchange.meetings
        self._averages: dict[str, float] | None = None
        self._place = exchange.group.place
        if self._place.replicas > 1:
            exchange.store.set(f"{key}/{self._place.rank}", json.dumps(self.pairs))

    def averages(self) -> dict[str, float]:
        """The averages; waits for the other replicas."""
        if self._averages is None:
            everyone = [self._of(rank) for rank in range(self._place.replicas)]
            self._averages = {}
            for name in self.pairs:
                found = [each[name] for each in everyone if each is not None and name in each]
                total, count = sum(pair[0] for pair in found), sum(pair[1] for pair in found)
                same = found[0][0] / found[0][1] if found[0][1] else 0.0
                # the mean of equal numbers is that number, to the last bit
                alike = all(pair == found[0] for pair in found)
                self._averages[name] = same if alike else total / count if count else 0.0
        return self._averages

    def _of(self, rank: int) -> dict[str, list[float]] | None:
        """What replica ``rank`` published; None if it did not report here."""
        if rank == self._place.rank:
            return {name: list(pair) for name, pair in self.pairs.items()}
        store, key = self._exchange.store, f"{self._key}/{rank}"
        began, told = time.monotonic(), False
        while not store.check([key]):
            # looked at in this order: the replica publishes before it comes to the meeting
            if self._exchange.passed(rank, self._meeting) and not store.check([key]):
                return None
            waited = time.monotonic() - began
            if waited > _TALK_AFTER_S and not told:
                told = True
                log.warning("replica %d waits for job.report() of replica %d", self._place.rank, rank)
            if waited > _PATIENCE_S:
                raise CoadaptError(
                    f"job.report() was called on replica {self._place.rank} and not on replica {rank}, and its result is used inside the "
                    "training loop: call it on all replicas"
                )
            time.sleep(_POLL_S)
        found: dict[str, list[float]] = json.loads(store.get(key))
        return found


def as_pair(name: str, value: Any) -> tuple[float, float]:
    """A metric as (sum, count)."""
    total, count = value if isinstance(value, tuple) else (value, 1)
    return _as_number(name, total), _as_number(name, count)


def _as_number(name: str, value: Any) -> float:
    try:
        return float(value.detach()) if isinstance(value, Tensor) else float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"job.report({name}=...): {value!r:.60} is not a number") from error

"""A history as Trace Event JSON, for chrome://tracing and Perfetto.

A node is a process, each of its GPUs a thread, a job's stay on a GPU a complete event; the time in which
it started, resized or stopped is a slice inside it. The log says how many GPUs of a node a job holds,
not which: lanes are given out lowest first and kept as long as the job stays.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Any

from coadapt.model import Placement
from coadapt.report.cluster_history import History
from coadapt.report.job_history import JobHistory
from coadapt.report.series import StepSeries

_CLUSTER = 0
_US = 1e6


def chrome_trace(history: History) -> dict[str, Any]:
    """The trace as plain data, ready for JSON; times in microseconds since the log's first record."""
    history.settle()
    pids = {name: number for number, name in enumerate(history.nodes, start=1)}
    events: list[dict[str, Any]] = [_name("process_name", _CLUSTER, 0, "cluster")]
    for name, node in history.nodes.items():
        events.append(_name("process_name", pids[name], 0, f"{name} ({node.gpus} x {node.gpu_type})"))
        events += [_name("thread_name", pids[name], lane, f"GPU {lane}") for lane in range(node.gpus)]
    events += _stays(history, pids)
    for title, series in (("jobs waiting", history.queued), ("GPUs held", history.held)):
        events += _counter(title, series)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _counter(title: str, series: StepSeries) -> Iterator[dict[str, Any]]:
    binned = series.binned()
    for index, value in enumerate(binned.values):
        at = round(index * binned.width_s * _US)
        yield {"ph": "C", "name": title, "pid": _CLUSTER, "tid": 0, "ts": at, "args": {"value": value}}


class _Lanes:
    """Free GPUs of one node, lowest first; more are made up where more is held than the node has."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._made = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._made += 1
        return self._made - 1

    def give(self, lane: int) -> None:
        heapq.heappush(self._free, lane)


def _stays(history: History, pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    jobs = list(history.jobs.values())
    moves = [
        (at, delta > 0, order, node, delta)
        for order, job in enumerate(jobs)
        for at, node, delta in _moves(job)
    ]
    moves.sort()  # at one moment leaving comes before arriving
    lanes = {name: _Lanes() for name in history.nodes}
    holding: dict[tuple[int, str], list[tuple[int, float]]] = {}
    origin = history.began_at or 0.0
    for at, arriving, order, node, delta in moves:
        held = holding.setdefault((order, node), [])
        if arriving:
            held += [(lanes[node].take(), at) for _ in range(delta)]
            continue
        for _ in range(-delta):
            lane, since = held.pop()
            lanes[node].give(lane)
            yield from _slices(jobs[order], pids[node], lane, since, at, origin)


def _moves(job: JobHistory) -> Iterator[tuple[float, str, int]]:
    """(time, node, GPUs taken or given back), over the job's life."""
    before: Counter[str] = Counter()
    until = 0.0
    for stay in job.stays:
        if stay.start != until:
            yield from ((until, node, -count) for node, count in before.items())
            before = Counter()
        after = _by_node(stay.placement, job)
        for node in before.keys() | after.keys():
            if after[node] != before[node]:
                yield stay.start, node, after[node] - before[node]
        before, until = after, stay.end
    yield from ((until, node, -count) for node, count in before.items())


def _by_node(placement: Placement, job: JobHistory) -> Counter[str]:
    counts: Counter[str] = Counter()
    for slot in placement.slots:
        counts[slot.node] += slot.replicas * job.spec.role(slot.role).demand.gpus
    return counts


def _slices(
    job: JobHistory, pid: int, lane: int, start: float, end: float, origin: float
) -> Iterator[dict[str, Any]]:
    args = {"job": job.id, "name": job.spec.name, "user": job.spec.user, "restarts": job.restarts}
    yield _complete(job.id, "stay", pid, lane, start - origin, end - origin, args)
    for stay in job.stays:
        if not stay.training and stay.start < end and stay.end > start:
            low, high = max(start, stay.start), min(end, stay.end)
            yield _complete("changing", "change", pid, lane, low - origin, high - origin, {"job": job.id})


def _complete(
    name: str, category: str, pid: int, tid: int, start: float, end: float, args: dict[str, Any]
) -> dict[str, Any]:
    ts = round(start * _US)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": round(end * _US) - ts,
        "args": args,
    }

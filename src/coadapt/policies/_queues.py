"""The queues of Tiresias, kept from decision to decision and built anew when they are not.

Memory holds ``q/<job>: [queue, entered_at, service before it counts]`` for jobs that were demoted or promoted, and
nothing for the others: they are in queue 0 since they were submitted.

What happened since the last decision is told from the sizes of the snapshot's indices. Nothing gains a
target but by a decision, so ``placed`` only shrinks in between; new jobs are the last of ``active``. If the
waiting jobs then do not add up (one was cancelled) or a specification has changed, everything is built anew.

When a running job will cross its threshold is kept as a lower bound, since a job whose GPUs are not free yet
gathers no service: a heap of bounds says whom to look at, and only they are computed, from the job itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, nextafter
from operator import attrgetter
from typing import Any

from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._ranked import Rank, Ranked
from coadapt.policies._requested import gpus_needed

_PREFIX = "q/"
#: Bounds are this much earlier than the crossing, for rounding.
_MARGIN_S = 1e-3
#: A service this close to its threshold has reached it; otherwise rounding would wake us for ever.
_REACHED = 1.0 - 1e-9
_spec = attrgetter("spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Between which services the queues lie, and when a job may come back."""

    thresholds: tuple[float, ...]
    promote_after: float | None = None


class Queues:
    """All active jobs by (queue, entered_at, order); without those that run and may not be preempted."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        #: Counts decisions, so that whoever holds an older state of these queues can tell.
        self.version = 0
        self.ranked = Ranked()
        self._kept: Mapping[str, Any] = {}
        self._patch: dict[str, Any] = {}
        #: Specifications of all jobs taken in, in the order of ``active``; None: build anew.
        self._specs: dict[str, Any] | None = None
        self._placed: set[str] = set()
        self._bounds: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def update(self, snapshot: Snapshot, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Takes in what happened; returns the changes of memory."""
        self._kept, self._patch = kept, {}
        self.version += 1
        if self._specs is None or not self._catch_up(snapshot, self._specs):
            self._build(snapshot)
        if self._heap and self._heap[0][0] <= snapshot.now:
            self._demote(snapshot)
        if self.rules.promote_after is not None:
            self._promote(snapshot)
        return self._patch

    def commit(self, snapshot: Snapshot, changed: Mapping[str, str | None]) -> float | None:
        """Takes in what was decided; returns when the next job changes its queue if nothing else happens."""
        for name, gpu_type in changed.items():
            job = snapshot.active[name]
            if gpu_type is None:
                self._placed.discard(name)
                self._bounds.pop(name, None)
                continue
            if name in self._placed:
                self._specs = None  # moved to another type: the placer may have left it where it was
            self._placed.add(name)
            if job.spec.preemptible:
                self._watch(job, snapshot.now)
            else:
                self.ranked.remove(name)
        at = min(self._next_demotion(snapshot), self._next_promotion(snapshot, changed))
        # one that is due already (it crossed while it was being stopped) is seen to at the next decision
        return max(at, nextafter(snapshot.now, inf)) if at < inf else None

    def queue_of(self, name: str) -> int:
        """The job's queue, 0 the first."""
        state = self._state(name)
        return state[0] if state else 0

    def rank_of(self, job: JobView) -> Rank:
        """(queue, when it entered, order of submission)."""
        state = self._state(job.id)
        return (state[0], state[1], job.order) if state else (0, job.submitted_at, job.order)

    def _state(self, name: str) -> list[Any] | None:
        key = _PREFIX + name
        return self._patch[key] if key in self._patch else self._kept.get(key)

    # -- who is there --------------------------------------------------------------------------------

    def _build(self, snapshot: Snapshot) -> None:
        self.ranked, self._specs = Ranked(), {}
        self._placed, self._bounds, self._heap = set(), {}, []
        self._patch = {
            key: None
            for key in self._kept
            if key.startswith(_PREFIX) and key[len(_PREFIX) :] not in snapshot.active
        }
        for job in snapshot.active.values():
            self._specs[job.id] = job.spec
            self._add(job, snapshot.now)

    def _catch_up(self, snapshot: Snapshot, specs: dict[str, Any]) -> bool:
        """Brings everything up to date; False if it has to be built anew."""
        active, placed = snapshot.active, snapshot.placed
        if len(placed) != len(self._placed):
            for name in sorted(self._placed - placed.keys()):
                self._leave(name)
                if name in active:  # its node or its attempt is lost, or no place was found for it
                    self._add(active[name], snapshot.now)
                else:
                    del specs[name]
                    if _PREFIX + name in self._kept:
                        self._patch[_PREFIX + name] = None
        new: list[str] = []
        for name in _newest_first(active):
            if name in specs:
                break
            new.append(name)
        for name in reversed(new):
            specs[name] = active[name].spec
            self._add(active[name], snapshot.now)
        # a structure's equality begins with identity, so this is one pass over pointers
        return len(specs) == len(active) and list(map(_spec, active.values())) == list(specs.values())

    def _add(self, job: JobView, now: float) -> None:
        if job.target:
            self._placed.add(job.id)
            if not job.spec.preemptible:
                return
            self._watch(job, now)
        self.ranked.add(job, self.rank_of(job))

    def _leave(self, name: str) -> None:
        self._placed.discard(name)
        self._bounds.pop(name, None)
        if name in self.ranked.entries:
            self.ranked.remove(name)

    # -- who changes queues --------------------------------------------------------------------------

    def _service(self, job: JobView, now: float) -> float:
        """GPU-seconds that count: all, or those since the job was promoted."""
        state = self._state(job.id)
        return job.attained_gpu_s(now) - (state[2] if state else 0.0)

    def _crossing(self, job: JobView, now: float) -> float:
        """When a job that runs reaches the next threshold; inf in the last queue."""
        queue, thresholds = self.queue_of(job.id), self.rules.thresholds
        if queue >= len(thresholds):
            return inf
        gpus = job.target_gpus or gpus_needed(job.spec)
        return now + (thresholds[queue] - self._service(job, now)) / max(gpus, 1)

    def _watch(self, job: JobView, now: float) -> None:
        bound = self._crossing(job, now) - _MARGIN_S
        if bound < inf:
            self._bounds[job.id] = bound
            heappush(self._heap, (bound, job.id))
        else:
            self._bounds.pop(job.id, None)

    def _demote(self, snapshot: Snapshot) -> None:
        now, thresholds = snapshot.now, self.rules.thresholds
        due: list[JobView] = []
        while self._heap and self._heap[0][0] <= now:
            bound, name = heappop(self._heap)
            if self._bounds.get(name) == bound:
                del self._bounds[name]
                due.append(snapshot.active[name])
        for job in due:
            queue, service = self.queue_of(job.id), self._service(job, now)
            goal = queue
            while goal < len(thresholds) and service >= thresholds[goal] * _REACHED:
                goal += 1
            if goal > queue:
                state = self._state(job.id)
                self._patch[_PREFIX + job.id] = [goal, now, state[2] if state else 0.0]
                self.ranked.move(job, self.rank_of(job))
            self._watch(job, now)

    def _next_demotion(self, snapshot: Snapshot) -> float:
        """Exactly the earliest crossing: computes those whose bound is not later than the best found."""
        first, seen = inf, []
        heap, bounds = self._heap, self._bounds
        while heap and heap[0][0] < first:
            entry = heappop(heap)
            if bounds.get(entry[1]) == entry[0]:
                seen.append(entry)
                first = min(first, self._crossing(snapshot.active[entry[1]], snapshot.now))
        for entry in seen:
            heappush(heap, entry)
        if len(heap) > 4 * len(bounds) + 64:
            self._heap = [(bound, name) for name, bound in bounds.items()]
            heapify(self._heap)
        return first

    def _promote(self, snapshot: Snapshot) -> None:
        for job, at in self._promotions(snapshot):
            if job.id in snapshot.waiting and at <= snapshot.now:
                self._patch[_PREFIX + job.id] = [0, snapshot.now, job.attained_gpu_s(snapshot.now)]
                self.ranked.move(job, self.rank_of(job))

    def _next_promotion(self, snapshot: Snapshot, changed: Mapping[str, str | None]) -> float:
        first = inf
        for job, at in self._promotions(snapshot, changed):
            if (job.id in snapshot.waiting and job.id not in changed) or changed.get(job.id, "") is None:
                first = min(first, at)
        return first

    def _promotions(
        self, snapshot: Snapshot, changed: Mapping[str, str | None] | None = None
    ) -> Iterable[tuple[JobView, float]]:
        """Jobs behind the first queue, and when each has waited long enough if it waits."""
        knob, now = self.rules.promote_after, snapshot.now
        if knob is None:
            return
        for key in [*self._kept, *(key for key in self._patch if key not in self._kept)]:
            job = snapshot.active.get(key[len(_PREFIX) :]) if key.startswith(_PREFIX) else None
            if job is None or not self.queue_of(job.id):
                continue
            ran_s = self._service(job, now) / max(gpus_needed(job.spec), 1)
            since = now if changed and job.id in changed else job.changed_at
            if ran_s > 0 and since is not None:
                yield job, since + knob * ran_s


def _newest_first(active: Mapping[str, JobView]) -> Iterable[str]:
    return reversed(active if isinstance(active, dict) else list(active))

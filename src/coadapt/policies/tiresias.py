"""Tiresias: least attained service first, in few queues; nothing needs to be known about a job.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning" (NSDI 2019): discretised 2D-LAS. With
service a_j = GPUs x time received so far and thresholds h_1 < h_2 < ... (GPU-seconds), job j is in queue

    q_j = number of thresholds with h <= a_j

Jobs are ranked by (queue, time they entered it). Each decision walks them by rank and runs whatever fits at its
requested size; the others wait or are preempted (``policies._ranked``). A job enters queue 0 when it is submitted.

``promote_after`` = k (the paper's PROMOTEKNOB): a preempted job that has waited k times as long as it has
run goes back to the end of queue 0 and its service counts from 0 again. Off by default.

``gittins``: 2D-Gittins, for when the distribution of service is known (``samples``, GPU-seconds, or else learned
from jobs that ended). Rank = Gittins index at a_j, largest first, in one queue
(``discretised=False``) or within each queue (default, as in the released simulator). Before any job has ended the
index is not known; until then the order is that of 2D-LAS: by queue, or by service if not discretised.

Of all jobs that have received service a and not finished, let S be the total service. The index is the chance to finish
within one more quantum delta per GPU-second spent on it:

    index(a) = P(S <= a + delta | S > a) / E[min(S - a, delta) | S > a]

The released simulator differs from the paper in two ways, and we follow the paper's definition: in the mean it takes a
finishing job's *total* service instead of S - a, and its policy sorts by the index ascending. Beyond the
largest sample nothing is known; the index is 0, so that such a job goes last.

Defaults are those of the simulator published with Pollux: two queues, 16 GPU-hours. The released Tiresias
simulator uses thresholds=(3250, 7200), and 3250 GPU-seconds as the quantum of the index.

Where we deviate: jobs that may not be preempted keep their GPUs, and the walk divides the rest; the paper
looks at services continuously, so in event mode we ask to be woken when the next one crosses its threshold.
Where the paper ranks a queue by start time (a job that was preempted goes behind those that run), we keep
the published Pollux setting: time of entry, never changed by a preemption.

**Queues** are kept from decision to decision, and rebuilt when they do not match the snapshot. Memory holds
``q/<job>: [queue, entered_at, service before it counts]`` for jobs that were demoted or promoted; all other jobs are
in queue 0 since they were submitted. Changes since the last decision are inferred from the sizes of the snapshot's
indices: a job gains a target only by a decision, so ``placed`` only shrinks in between, and new jobs are the last of
``active``. If the number of waiting jobs then does not match (one was cancelled) or a specification has changed, the
queues are rebuilt. The time at which a running job crosses its threshold is kept as a lower bound, since a job whose
GPUs are not free yet gathers no service: a heap of these bounds gives the jobs to check, and only their service is
computed.

**Learned services.** A snapshot does not show jobs that have ended. So whenever a job starts, its service until then,
the time and its GPUs are recorded; when it is gone, the service it received follows from these. The newest ``KEPT``
are remembered, one key each, so that a decision logs only what is new. A job that was cancelled or has failed counts
like one that finished: a snapshot does not tell, and the index asks how long jobs last, not why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, nextafter
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coadapt.errors import InputError
from coadapt.model import Allocation, Reason
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng, as_requested, gpus_needed
from coadapt.policies._ranked import Rank, Ranked
from coadapt.prediction._base import FloatArray

KEPT = 1000
_PAST, _RUN, _COUNT = "past/", "run/", "ended"
_PREFIX = "q/"
#: Bounds are this much earlier than the crossing, for rounding.
_MARGIN_S = 1e-3
#: A service this close to its threshold has reached it; otherwise rounding would wake us for ever.
_REACHED = 1.0 - 1e-9
_spec = attrgetter("spec")


class Services:
    """Reads and writes what is known of past services in a policy's memory."""

    def __init__(self, kept: Mapping[str, Any], given: tuple[float, ...]) -> None:
        self._kept, self._given = kept, given
        self.patch: dict[str, Any] = {}

    def note_ended(self, snapshot: Snapshot) -> None:
        """Adds the jobs that are gone since the last decision."""
        if self._given:
            return
        count: int = self._kept.get(_COUNT, 0)
        for key, (service, at, gpus) in self._runs():
            if key[len(_RUN) :] in snapshot.placed:
                continue
            self.patch[key] = None
            total = service + gpus * (snapshot.now - at)
            if key[len(_RUN) :] not in snapshot.active and total > 0:
                self.patch[f"{_PAST}{count % KEPT}"] = total
                count += 1
        if count != self._kept.get(_COUNT, 0):
            self.patch[_COUNT] = count

    def _runs(self) -> list[tuple[str, Any]]:
        return [(key, value) for key, value in self._kept.items() if key.startswith(_RUN)]

    def note_started(self, names: Iterable[str], snapshot: Snapshot) -> None:
        """Remembers where these jobs stand as they start."""
        if self._given:
            return
        for name in names:
            job = snapshot.active[name]
            service = job.attained_gpu_s(snapshot.now)
            self.patch[_RUN + name] = [service, snapshot.now, gpus_needed(job.spec)]

    def index(self, quantum_gpu_s: float) -> GittinsIndex | None:
        """Returns the Gittins index; None before any job has ended."""
        sample = self._given or tuple(
            value for key, value in {**self._kept, **self.patch}.items() if key.startswith(_PAST)
        )
        return GittinsIndex(sample, quantum_gpu_s) if sample else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Between which services the queues lie, and when a job may come back."""

    thresholds: tuple[float, ...]
    promote_after: float | None = None


class Queues:
    """All active jobs by (queue, entered_at, order), except running jobs that may not be preempted."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        #: Counts decisions, so that a holder of an older state of these queues can detect it.
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
        """Returns the job's queue; 0 is the first."""
        state = self._state(name)
        return state[0] if state else 0

    def rank_of(self, job: JobView) -> Rank:
        """Returns (queue, time of entry, order of submission)."""
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


class TiresiasPolicy(BasePolicy):
    """Discretised two-dimensional least attained service, or the two-dimensional Gittins index.

    Args:
        thresholds: GPU-seconds received at which a job moves to the next queue.
        queues: number of queues; uses the first ``queues - 1`` thresholds. None: all.
        promote_after: a preempted job returns to the first queue after waiting this many times as long as it ran;
            None: never.
        gittins: rank by the Gittins index of the service received.
        discretised: rank by the index within the queues; False: in one queue.
        samples: GPU-seconds of past jobs for the index; empty: learned from the jobs that end.
        quantum_gpu_s: GPU-seconds over which the index looks ahead.
    """

    name = "tiresias"
    order = 50
    help = "Tiresias: least attained service first, in a few queues; needs no information about jobs."
    option_help: ClassVar[dict[str, str]] = {
        "thresholds": "GPU-seconds of service at which a job moves to the next queue; 57600 is 16 GPU-hours",
        "queues": "number of queues, which use the first thresholds; none: all thresholds",
        "promote_after": "a job returns to the first queue after waiting this many times as long as it ran; none: never",
        "gittins": "rank by the Gittins index of the service received",
        "discretised": "rank by the index within each queue; false: in one queue",
        "samples": "GPU-seconds of past jobs for the index; empty: learned from jobs that end",
        "quantum_gpu_s": "GPU-seconds over which the index looks ahead",
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {"gittins": {"gittins": True}}
    placer = "packed"
    #: Of the simulator published with Pollux; the paper places by model skew (placer "skew").
    published_placer = "most-free"
    adapts_batch = False
    chooses_size = False

    def __init__(
        self,
        *,
        thresholds: Sequence[float] = (57600.0,),
        queues: int | None = None,
        promote_after: float | None = None,
        gittins: bool = False,
        discretised: bool = True,
        samples: Iterable[float] = (),
        quantum_gpu_s: float = 3250.0,
    ) -> None:
        limits = tuple(thresholds)
        if queues is not None:
            if not 1 <= queues <= len(limits) + 1:
                raise InputError(f"{queues} queues need {queues - 1} thresholds; {len(limits)} were given")
            limits = limits[: queues - 1]
        if any(h <= 0 for h in limits) or sorted(set(limits)) != list(limits):
            raise InputError(f"thresholds {limits} must be positive and rise")
        if promote_after is not None and promote_after <= 0:
            raise InputError(f"promote_after {promote_after} must be positive")
        if gittins and not discretised:
            limits = ()
        self.rules = Rules(thresholds=limits, promote_after=promote_after)
        self.gittins, self.discretised = gittins, discretised
        self.samples, self.quantum_gpu_s = tuple(samples), quantum_gpu_s

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Runs the jobs of ``snapshot`` by queue and rank.

        Queues are kept in ``memory``; ``curves`` and ``rng`` are not used.
        """
        queues = self._queues(memory.warm)
        patch = queues.update(snapshot, memory.kept)
        ranked, services = queues.ranked, None
        if self.gittins:
            services = Services(memory.kept, self.samples)
            services.note_ended(snapshot)
            ranked = self._by_index(snapshot, queues, services)
        changed = ranked.settle(snapshot)
        allocations: dict[str, Allocation] = {}
        reasons: dict[str, Reason] = {}
        for name, gpu_type in changed.items():
            job = snapshot.active[name]
            allocations[name] = Allocation() if gpu_type is None else as_requested(job.spec, gpu_type)
            reasons[name] = _reason(job, queues.queue_of(name), gpu_type, snapshot.now)
        if services is not None:
            services.note_started((n for n, gpu_type in changed.items() if gpu_type is not None), snapshot)
            patch |= services.patch
        return Proposal(
            allocations=in_order(allocations, ranked),
            reasons=reasons,
            memory=patch,
            warm=(queues, queues.version) if services is None else None,
            wake_at=queues.commit(snapshot, changed),
        )

    def _queues(self, warm: Any) -> Queues:
        """The queues as the last decision left them; new ones if there are none or they have moved on."""
        if isinstance(warm, tuple) and isinstance(warm[0], Queues) and warm[0].version == warm[1]:
            return warm[0]
        return Queues(self.rules)

    def _by_index(self, snapshot: Snapshot, queues: Queues, services: Services) -> Ranked:
        """All jobs anew, for every running job's index has moved."""
        index, jobs = services.index(self.quantum_gpu_s), list(snapshot.active.values())
        attained = [job.attained_gpu_s(snapshot.now) for job in jobs]
        if index is not None:
            worth = index(attained).tolist()
        else:
            worth = [0.0 if self.discretised else -service for service in attained]
        ranked = Ranked()
        for job, value in zip(jobs, worth, strict=True):
            if job.spec.preemptible or not job.target:
                queue, *rest = queues.rank_of(job)
                ranked.add(job, (queue, -value, *rest))
        return ranked


def in_order(allocations: dict[str, Allocation], ranked: Ranked) -> dict[str, Allocation]:
    """By rank, which is the order the placer gives out nodes in."""
    if len(allocations) < 2:
        return allocations
    entries = ranked.entries
    return {name: allocations[name] for name in sorted(allocations, key=lambda n: entries[n].rank)}


def _reason(job: JobView, queue: int, gpu_type: str | None, now: float) -> Reason:
    hours = job.attained_gpu_s(now) / 3600
    numbers: dict[str, Any] = {"queue": queue, "service_gpu_h": round(hours, 4)}
    if gpu_type is None:
        return Reason(
            code="preempted",
            text=f"Waiting. Jobs ranked before queue {queue} need its GPUs.",
            numbers=numbers,
        )
    return Reason(
        code="started",
        text=f"Running as the next job in queue {queue} that fits. It has used {hours:.2f} GPU-hours.",
        numbers=numbers,
    )


class GittinsIndex:
    """The index for one sample and quantum. It sorts the sample once; each call then takes O(log n)."""

    def __init__(self, services_gpu_s: Iterable[float], quantum_gpu_s: float) -> None:
        sample = np.sort(np.fromiter(services_gpu_s, dtype=np.float64))
        if not len(sample) or not sample[0] > 0 or not np.isfinite(sample[-1]):
            raise InputError("a Gittins index needs a sample of positive, finite services")
        if not quantum_gpu_s > 0:
            raise InputError(f"quantum {quantum_gpu_s} GPU-s must be positive")
        self.quantum_gpu_s = quantum_gpu_s
        self._sample = sample
        #: _sums[i] = sum of the i smallest.
        self._sums = np.concatenate(([0.0], np.cumsum(sample)))

    def __call__(self, attained_gpu_s: npt.ArrayLike) -> FloatArray:
        """Index of jobs that have received ``attained_gpu_s``, per GPU-second."""
        attained = np.asarray(attained_gpu_s, dtype=np.float64)
        first = np.searchsorted(self._sample, attained, side="right")
        last = np.searchsorted(self._sample, attained + self.quantum_gpu_s, side="right")
        finishing = last - first
        # total service that the survivors take within the quantum
        taken = self._sums[last] - self._sums[first] - attained * finishing
        taken = taken + self.quantum_gpu_s * (len(self._sample) - last)
        return np.asarray(np.divide(finishing, taken, out=np.zeros(attained.shape), where=taken > 0))

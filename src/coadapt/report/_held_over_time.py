"""The sums of a history: nodes that come and go, GPUs that jobs hold, and what they are worth, over time."""

from __future__ import annotations

from coadapt.model import (
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    Placement,
    gpus_of,
)
from coadapt.model.snapshot import Phase
from coadapt.report.lives import JobHistory, Stay
from coadapt.report.series import StepSeries


class HeldOverTime:
    """Series over the cluster, and sums by job; ``_hold`` is told every change of a job."""

    def __init__(self, *, detail: bool = True) -> None:
        self.detail = detail
        self.began_at: float | None = None
        self.now = 0.0
        self.policy = ""
        self.decisions = 0
        self.jobs: dict[str, JobHistory] = {}
        #: Every node that ever joined, as it last did, and GPUs of those that take replicas.
        self.nodes: dict[str, Node] = {}
        self.gpus = 0
        self._up: dict[str, int] = {}
        #: Nodes that take no replicas, there or not.
        self._drained: set[str] = set()
        #: (time, GPUs from then on), one for each moment at which nodes came or went.
        self.gpu_steps: list[tuple[float, int]] = []
        self.first_submitted_at: float | None = None
        self.last_ended_at: float | None = None
        #: GPU-seconds held, and available, between the two.
        self.span_held_gpu_s = 0.0
        self.span_available_gpu_s = 0.0
        self._available_before = 0.0
        self.held = StepSeries()
        self.changing = StepSeries()
        #: GPUs of nodes that take replicas; more where leaving nodes or shared GPUs are still held.
        self.available = StepSeries()
        #: Jobs that may run, and those of them without GPUs.
        self.active = StepSeries()
        self.queued = StepSeries()
        #: GPUs whose statistical efficiency is known, and the same times the efficiency.
        self.rated = StepSeries()
        self.useful = StepSeries()
        self._blocked: dict[str, set[str]] = {}
        self._dependents: dict[str, list[str]] = {}

    def _begin(self, at: float) -> None:
        self.began_at = at
        for series in self._series():
            series.start(at)

    def _series(self) -> tuple[StepSeries, ...]:
        return self.held, self.changing, self.available, self.active, self.queued, self.rated, self.useful

    def _node_joined(self, event: NodeJoined) -> None:
        self.nodes[event.node.name] = event.node
        self._up[event.node.name] = event.node.gpus
        self._set_gpus()

    def _node_left(self, event: NodeLost | NodeDrained) -> None:
        if isinstance(event, NodeLost):
            self._up.pop(event.node, None)
        elif event.node in self.nodes:
            self._drained.add(event.node)
        self._set_gpus()

    def _node_opened(self, event: NodeOpened) -> None:
        self._drained.discard(event.node)
        self._set_gpus()

    def _set_gpus(self) -> None:
        self.gpus = sum(gpus for node, gpus in self._up.items() if node not in self._drained)
        if self.gpu_steps and self.gpu_steps[-1][0] == self.now:
            self.gpu_steps.pop()
        self.gpu_steps.append((self.now, self.gpus))
        self.available.set(self.now, max(self.gpus, self.held.value))

    def _note_span(self) -> None:
        self.last_ended_at = self.now
        self.held.advance(self.now)
        self.available.advance(self.now)
        self.span_held_gpu_s = self.held.total
        self.span_available_gpu_s = self.available.total - self._available_before

    def _hold(self, job: JobHistory, placement: Placement, phase: Phase) -> None:
        """From now on the job holds ``placement`` and is in ``phase``; what was until now is summed up."""
        now = self.now
        before, was = job.gpus, job.phase
        if now > job.since:
            self._sum_up(job, now)
            job.since = now
        if placement is not job.held:
            job.held, job.gpus = placement, gpus_of(placement, job.spec)
        job.phase = phase
        after = job.gpus
        if before != after:
            held = self.held.value + after - before
            self.held.set(now, held)
            if max(self.gpus, held) != self.available.value:
                self.available.set(now, max(self.gpus, held))
            if not before or not after:
                self.queued.set(now, self.queued.value + (1 if before else -1))
        lost_before = before if was is not Phase.RUNNING else 0
        lost_after = after if phase is not Phase.RUNNING else 0
        if lost_before != lost_after:
            self.changing.set(now, self.changing.value + lost_after - lost_before)

    def _sum_up(self, job: JobHistory, now: float) -> None:
        took = now - job.since
        if not job.gpus:
            job.waited_s += took
            return
        training = job.phase is Phase.RUNNING
        job.held_gpu_s += job.gpus * took
        if not training:
            job.changing_gpu_s += job.gpus * took
        elif job.efficiency is not None:
            self._rate(job, now)
        else:  # waits for the first report
            job.unrated_since = job.unrated_since if job.unrated_gpu_s else job.since
            job.unrated_gpu_s += job.gpus * took
        if self.detail:
            start, stays = job.since, job.stays
            last = stays[-1] if stays else None
            if last and last.end == start and last.training == training and last.placement is job.held:
                start = stays.pop().start
            stays.append(Stay(start, now, job.gpus, training, job.held))

    def _rate(self, job: JobHistory, now: float) -> None:
        """Gives the training since the last report the efficiency now known."""
        since = max(job.since, job.rated_until)
        gpu_s = job.gpus * (now - since)
        if job.unrated_gpu_s:
            since, gpu_s = job.unrated_since, gpu_s + job.unrated_gpu_s
            job.unrated_gpu_s = 0.0
        job.rated_until = now
        if job.efficiency is None or now <= since:
            return
        job.rated_gpu_s += gpu_s
        job.useful_gpu_s += gpu_s * job.efficiency
        mean = gpu_s / (now - since)
        self.rated.add(since, now, mean)
        self.useful.add(since, now, mean * job.efficiency)

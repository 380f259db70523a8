"""What a live run measured, as the ground truth of a simulation: step times, noise of gradients, and what steps do not explain.

From the log alone: step times are fitted to the reports of all jobs of a profile; the noise scale is taken by epoch; seconds that
steps do not explain are split into those at each start or resize (imports, first batches), those of each epoch (validation,
checkpoints: as a factor of the step), those at the end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from coadapt.model import (
    ActionsIssued,
    Batch,
    JobFinished,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Measurement,
    Placement,
    Record,
    ResizeJob,
    StartJob,
)
from coadapt.prediction import gradient_noise
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time import step_table


@dataclass(slots=True)
class Seconds:
    """What a run spent besides steps, in seconds: every occurrence."""

    launch: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    setup: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stop: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    report: list[float] = field(default_factory=list)
    #: (seconds between reports, seconds of their steps) by profile.
    stretches: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def typical(self, values: Sequence[float]) -> float:
        """Their median; 0 where there are none."""
        return max(median(values), 0.0) if values else 0.0

    def slower(self, profile: str) -> float:
        """How many times longer an epoch takes than its steps."""
        pairs = self.stretches.get(profile, [])
        steps = sum(pair[1] for pair in pairs)
        return max(sum(pair[0] for pair in pairs) / steps, 1.0) if steps > 0 else 1.0


class RunTruth:
    """Implements ``simulation.truth._base.Truth`` for all jobs of one profile."""

    gpu_types = ("t4",)
    max_workers = 16

    def __init__(self, specs: Sequence[JobSpec], seen: Sequence[Measurement], slower: float) -> None:
        spec = specs[0]
        assert spec.batch is not None
        assert spec.data_size is not None
        self._batch, self.data_size, self._slower = spec.batch, spec.data_size, slower
        self.epochs = math.ceil(max(each.epochs or 1.0 for each in specs))
        table = step_table.EMPTY_TABLE
        for measurement in seen:
            if measurement.step_s > 0:
                table = step_table.observe(table, measurement)
        self._params = step_time.fit(table, gpu_type="t4")
        assert self._params is not None, "no step was measured"
        noise: dict[int, list[float]] = defaultdict(list)
        for m in seen:
            if m.grad_sqr and m.grad_var and m.work is not None:
                noise[int(m.work / self.data_size)].append(self._batch.initial * m.grad_var / m.grad_sqr)
        self._noise = sorted((epoch, median(values)) for epoch, values in noise.items())

    def limits(self, gpu_type: str) -> Batch:
        """See ``Truth``."""
        return self._batch

    def epoch_marks(self) -> tuple[float, ...]:
        """See ``Truth``."""
        return tuple(self.data_size / self._batch.initial * (epoch + 1) for epoch in range(self.epochs))

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        """See ``Truth``."""
        where = (len(shape), sum(shape), atomic_batch)
        step_s = float(self._params.step_time(*where))  # type: ignore[union-attr]
        grad_s = float(self._params.grad_time(*where))  # type: ignore[union-attr]
        return step_s * self._slower, max(step_s - grad_s, 0.0) * self._slower

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        """See ``Truth``: as last measured before."""
        place = bisect_right(self._noise, (epoch, math.inf)) - 1
        return 1.0, self._noise[max(place, 0)][1] / self._batch.initial

    def steps_until(self, batch: int, epoch: int) -> float:
        """See ``Truth``; nobody here asks an oracle."""
        raise NotImplementedError

    def metric(self, batch: int, epoch: int) -> float | None:
        """See ``Truth``."""
        return None


@dataclass(slots=True)
class _Course:
    """One job while its log is read: since when, and from how much work, it is at its present size."""

    spec: JobSpec
    work: float = 0.0
    since: float = 0.0
    kind: str = ""
    issued: float = 0.0
    last: Measurement | None = None


def resize_kind(before: Placement, after: Placement) -> str:
    """Newcomers have to get ready, while the others train on."""
    there = {(slot.node, slot.role): slot.replicas for slot in before.slots}
    grows = any(slot.replicas > there.get((slot.node, slot.role), 0) for slot in after.slots)
    return "grow" if grows else "shrink"


def measured_run(records: Iterable[Record]) -> tuple[dict[str, RunTruth], Seconds]:
    """Ground truths by profile, and seconds besides steps."""
    courses: dict[str, _Course] = {}
    seen: dict[str, list[Measurement]] = defaultdict(list)
    seconds = Seconds()
    for record in records:
        event, at = record.event, record.at
        if isinstance(event, JobSubmitted):
            courses[event.job] = _Course(event.spec)
        elif isinstance(event, ActionsIssued):
            for action in event.actions:
                course = courses[action.job]
                course.issued = at
                course.kind = "start" if isinstance(action, StartJob) else "stop"
                if isinstance(action, ResizeJob):
                    course.kind = resize_kind(action.before, action.placement)
        elif isinstance(event, JobStarted | JobResized):
            course = courses[event.job]
            seconds.launch[course.kind].append(at - course.issued)
            course.since, course.last = at, None
        elif isinstance(event, JobStopped):
            seconds.stop.append(at - courses[event.job].issued)
        elif isinstance(event, Measured):
            _report(courses[event.job], event.measurement, at, seconds)
            seen[courses[event.job].spec.profile].append(event.measurement)
        elif isinstance(event, JobFinished):
            _finish(courses[event.job], at, seconds)
    specs: dict[str, list[JobSpec]] = defaultdict(list)
    for course in courses.values():
        specs[course.spec.profile].append(course.spec)
    truths = {name: RunTruth(specs[name], seen[name], seconds.slower(name)) for name in specs}
    return truths, seconds


def _report(course: _Course, m: Measurement, at: float, seconds: Seconds) -> None:
    if m.work is None or course.kind == "stop":
        course.work = m.work if m.work is not None else course.work
        return
    steps_s = _steps_s(course, m, m.work)
    if course.last is None:
        seconds.setup[course.kind].append(at - course.since - steps_s)
    elif course.last.config == m.config:
        seconds.stretches[course.spec.profile].append((at - course.since, steps_s))
        seconds.report.append(at - course.since)
    course.work, course.since, course.last = m.work, at, m


def _finish(course: _Course, at: float, seconds: Seconds) -> None:
    total = (course.spec.epochs or 0.0) * (course.spec.data_size or 0)
    if course.last is not None:
        seconds.end.append(at - course.since - _steps_s(course, course.last, total))


def _steps_s(course: _Course, m: Measurement, work: float) -> float:
    """Seconds of the steps from the job's work so far to ``work``."""
    assert course.spec.batch is not None
    initial, config = course.spec.batch.initial, m.config
    grad = (m.grad_sqr, m.grad_var) if m.grad_sqr and m.grad_var else (1.0, 1.0)
    gain = gradient_noise.gain(*grad, config.batch / initial)
    update_s = m.step_s + config.accumulation * (m.step_s - m.sync_s)
    return max(work - course.work, 0.0) / (gain * initial) * update_s

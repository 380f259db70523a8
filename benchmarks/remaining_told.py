"""What a controller would say about the ends of simulated jobs, by several ways, and what happened.

True is what happened, resizes to come included. Each way is calibrated by the jobs that ended before (``outcomes``):

- pace: ``eta.eta``, by the times of its reports alone;
- kept: ``eta_adaptive`` with steps, gradients and past jobs, its present GPUs kept for ever;
- shared: the same, drifting towards its fair share of the GPUs;
- known: an oracle, which no controller is. As "kept", with the GPUs to come known, change by change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from benchmarks.remaining_jobs import INTERVAL_S, SHARES, Controller, Score, total_of
from coadapt.model import Configuration, JobFinished, JobResized, JobStarted, JobSubmitted, Measured
from coadapt.model.events import decode
from coadapt.prediction.remaining import adaptive_run
from coadapt.prediction.remaining.eta_estimate import Outcome, calibrated, eta, outcome


@dataclass(slots=True, kw_only=True)
class Told:
    """What was told of one job at one moment: (seconds, deviation of its logarithm) by way, and what happened."""

    job: str
    share: float
    at: float
    ran_s: float
    ways: dict[str, tuple[float, float]] = field(default_factory=dict)
    real_s: float = 0.0
    ended_at: float = 0.0
    #: Its GPUs changed afterwards.
    resized: bool = False
    #: What the oracle asks: expected then, as it was, and the work done.
    then: tuple[adaptive_run.Expected, Configuration, float] | None = None


def told(controller: Controller, log: list[str]) -> list[Told]:
    """Everything that is told while a log is followed, when a job has reported more than each of the shares."""
    found: list[Told] = []
    pending: list[Told] = []
    marks: dict[str, list[float]] = {}
    now = 0.0
    for line in log:
        record = decode(line)
        if record.at > now:
            found += _tell(controller, pending)
            pending, now = [], record.at
        controller.take(record)
        event = record.event
        if isinstance(event, JobSubmitted):
            marks[event.job] = list(SHARES)
        elif isinstance(event, Measured) and event.measurement.work is not None:
            work, total, left = event.measurement.work, total_of(controller.spec(event.job)), marks[event.job]
            while left and work >= left[0] * total:
                share = left.pop(0)
                # reports come when something is new: what is told far beyond a share is not told at it
                if work < min(share + 0.08, 0.99) * total:
                    ran_s = controller.clocks.of(event.job, now)
                    pending.append(Told(job=event.job, share=share, at=now, ran_s=ran_s))
        elif isinstance(event, JobStarted | JobResized):
            for each in found:
                each.resized |= each.job == event.job
        elif isinstance(event, JobFinished):
            for each in found:
                if each.job == event.job:
                    each.real_s, each.ended_at = controller.clocks.ended[event.job] - each.ran_s, record.at
    found = [each for each in found if each.real_s > 0]
    for each in found:
        if each.then is not None:
            each.ways["known"] = (known_s(controller, each), each.then[0].deviation)
    return found


def _tell(controller: Controller, pending: list[Told]) -> list[Told]:
    """Fills in what the controller says at the end of this instant, of jobs that go on."""
    open_ = [each for each in pending if each.job in controller.state.active]
    fair = controller.state.gpus / max(len(controller.state.active), 1)
    for each in open_:
        run, expected = controller.runs[each.job], controller.expected(each.job)
        by_pace = eta(controller.paces[each.job], total_of(controller.spec(each.job)) - run.work)
        if by_pace is None:
            continue
        each.ways["pace"] = (by_pace.value, max(math.log(by_pace.upper / by_pace.low) / 2.56, 1e-3))
        if expected is None or run.config is None:
            continue
        seconds = expected.time_left(run.config, run.work, controller.chooser(expected, run.config))
        each.ways["kept"] = (seconds, expected.deviation)
        each.then = (expected, run.config, run.work)
        if controller.policy.chooses_size:
            each.ways["shared"] = adaptive_run.sharing(
                seconds, expected.deviation, run.config.replicas, fair, every_s=INTERVAL_S
            )
            # the same width for both: what is compared is the middle
            each.ways["kept"] = (seconds, each.ways["shared"][1])
    return open_


def known_s(controller: Controller, told_: Told) -> float:
    """Seconds to the end at the speeds expected then, on the GPUs the job was given afterwards."""
    assert told_.then is not None
    expected, config, work = told_.then
    now, total = told_.ran_s, expected.total
    places = controller.places[told_.job]
    ahead = [(config.nodes, config.replicas), *(each[1:] for each in places if each[0] <= now)][-1:]
    starts = [now, *(each[0] for each in places if each[0] > now), math.inf]
    ahead += [each[1:] for each in places if each[0] > now]
    for (nodes, replicas), until in zip(ahead, starts[1:], strict=True):
        if not replicas:  # it changes: time passes, work does not
            now = until
            continue
        placed = replace(config, nodes=nodes, replicas=replicas)
        choose = controller.chooser(expected, placed)
        while now < until and work < total:
            # in small parts, for the agent adapts its batch size on the way
            if choose is not None:
                atomic, more = choose(expected.limits.initial * expected.gradients(placed.batch, work)[1])
                placed = replace(placed, atomic_batch=atomic, accumulation=more)
            speed = expected.speed(placed, work)
            spent_s = min(total / 64 / speed, (total - work) / speed, until - now)
            now, work = now + spent_s, work + spent_s * speed
        if work >= total * (1 - 1e-9):
            break
    return now - told_.ran_s


def scored(tellings: list[Told], way: str) -> Iterator[tuple[Told, Score]]:
    """Errors of one way, each telling calibrated by those of jobs that had ended before it."""
    tellings = sorted((each for each in tellings if way in each.ways), key=lambda each: each.at)
    ends = sorted(tellings, key=lambda each: each.ended_at)
    past: list[Outcome] = []
    ended = 0
    for each in tellings:
        while ended < len(ends) and ends[ended].ended_at < each.at:
            became = outcome(ends[ended].share, *ends[ended].ways[way], ends[ended].real_s)
            past += [] if became is None else [became]
            ended += 1
        estimate = calibrated(*each.ways[way], each.share, past)
        held = estimate.low <= each.real_s <= estimate.upper
        yield each, (each.share, estimate.value, each.real_s, held)

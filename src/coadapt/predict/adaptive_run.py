"""What a controller keeps of a job whose GPUs and batch size change: steps, gradients, and stretches of time.

A stretch lies between two reports in the same place: so much work around so much done, in so many seconds. The stretch
in which a change falls belongs to neither place and is left out. ``eta_adaptive`` says what is to be expected.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model import Configuration, Fact, Measurement
from coadapt.predict import noise, step_time
from coadapt.predict.step_time import EMPTY_TABLE, StepTimeTable

#: Stretches that are kept.
MAX_STRETCHES = 64

#: (GPU type, nodes, replicas).
Place = tuple[str, int, int]


class Stretch(Fact, frozen=True):
    """From one report to the next on the same GPUs: where, how much work, around how much done, in what time."""

    config: Configuration
    done: float
    around: float
    seconds: float


class AdaptiveRun(Fact, frozen=True):
    """All that is kept. Times in seconds of running: the clock stands still while a job holds nothing."""

    noise: noise.NoiseTable
    table: StepTimeTable = EMPTY_TABLE
    stretches: tuple[Stretch, ...] = ()
    at: float | None = None
    work: float = 0.0
    #: Of the last report; None where a change came since.
    config: Configuration | None = None


def start(initial_batch: float) -> AdaptiveRun:
    """A job that has reported nothing."""
    return AdaptiveRun(noise=noise.NoiseTable(initial_batch=initial_batch))


def observe(run: AdaptiveRun, at: float, measurement: Measurement) -> AdaptiveRun:
    """The run after a report that came at ``at``. A report without progress leaves its time to the next one."""
    m = measurement
    if not math.isfinite(at):
        raise InputError(f"a report at {at} s: the time must be a number")
    run = replace(run, table=step_time.observe(run.table, m), noise=noise.observe(run.noise, m))
    if m.work is None or not 0 <= m.work < math.inf:
        return run
    same = run.config is not None and run.at is not None and place(run.config) == place(m.config)
    if same and run.at is not None and at >= run.at and m.work == run.work:
        return replace(run, config=m.config)
    stretches = run.stretches
    # work or time that went back (a restart from a checkpoint) makes no stretch
    if same and run.at is not None and at > run.at and m.work > run.work:
        done = m.work - run.work
        stretch = Stretch(config=m.config, done=done, around=run.work + done / 2, seconds=at - run.at)
        stretches = (*stretches[-(MAX_STRETCHES - 1) :], stretch)
    return replace(run, stretches=stretches, at=at, work=m.work, config=m.config)


def resume(run: AdaptiveRun, at: float) -> AdaptiveRun:
    """Training goes on at ``at`` after a change; what the next report tells lies partly before it."""
    return replace(run, at=at, config=None)


def place(config: Configuration) -> Place:
    """Where a configuration runs: what a change of it is told by."""
    return config.gpu_type, config.nodes, config.replicas

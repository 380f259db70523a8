"""Stale jobs are fitted together, once, and only when a decision needs a fit."""

from __future__ import annotations

import pytest

from coadapt.model import Batch, Configuration, JobSubmitted, Measurement, NodeJoined, Record
from coadapt.placement import PackedPlacer
from coadapt.policies import FifoPolicy
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time import step_table
from coadapt.prediction.step_time.pollux import StepTimeParams
from coadapt.scheduler import FittedCurves, Scheduler
from tests.builders import a_cluster, a_job

LIMITS = Batch(initial=32, max=256, per_gpu_min=8, per_gpu_max=64)


@pytest.fixture
def state():
    scheduler = Scheduler(FifoPolicy(), PackedPlacer())
    events = [NodeJoined(node=a_cluster("1x4").nodes[0])]
    for i in range(3):
        events.append(JobSubmitted(job=f"job-{i}", spec=a_job(batch=LIMITS)))
    for seq, event in enumerate(events, 1):
        scheduler.handle(Record(seq=seq, at=float(seq), event=event))
    for i, job in enumerate(scheduler.state.active.values()):
        config = Configuration(nodes=1, replicas=1, atomic_batch=32)
        job.table = step_table.observe(job.table, Measurement(config=config, step_s=0.317 + 0.1 * i))
    return scheduler.state


def test_one_question_fits_all_stale_jobs_at_once_and_none_twice(state):
    source, before = FittedCurves(), step_time.fit_count()
    curves = source.of(state)
    assert curves["job-0"].remaining_work() > 0
    assert step_time.fit_count() == before  # no fit was needed for that
    curves["job-0"].goodput(1, 2)
    assert step_time.fit_count() == before + 3
    for name in curves:
        curves[name].goodput(1, 2)
    assert step_time.fit_count() == before + 3
    source.of(state)["job-1"].goodput(1, 4)
    assert step_time.fit_count() == before + 3


def test_published_curves_use_the_published_model(state):
    curve = FittedCurves(step_time_model="pollux").of(state)["job-2"]
    assert isinstance(curve.model().step_time, StepTimeParams)

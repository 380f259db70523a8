"""Shortest remaining time first, by hand."""

from __future__ import annotations

from coadapt.policies import SrtfPolicy
from tests.unit.policies.harness import a_submission, finished, reasons, run


def test_srtf_preempts_for_a_shorter_job() -> None:
    jobs = [a_submission("long", gpus=4, duration_s=100), a_submission("short", 10, gpus=4, duration_s=20)]
    result = run(SrtfPolicy(), jobs)
    assert finished(result) == {"short": 30.0, "long": 120.0}
    assert reasons(result, "long") == [(0.0, "started"), (10.0, "preempted"), (30.0, "started")]


def test_srtf_lets_a_job_finish_that_has_less_left() -> None:
    jobs = [a_submission("first", gpus=4, duration_s=100), a_submission("second", 90, gpus=4, duration_s=20)]
    assert finished(run(SrtfPolicy(), jobs)) == {"first": 100.0, "second": 120.0}


def test_srtf_service_weighs_time_by_gpus() -> None:
    # 4 GPUs x 20 s = 80 GPU-s against 1 GPU x 60 s; on 4 GPUs they exclude each other
    jobs = [
        a_submission("blocker", gpus=4, duration_s=5),
        a_submission("wide", 1, gpus=4, duration_s=20),
        a_submission("narrow", 1, duration_s=60),
    ]
    assert finished(run(SrtfPolicy(), jobs))["wide"] == 25.0
    assert finished(run(SrtfPolicy(service=True), jobs))["wide"] == 85.0


def test_srtf_backfills_and_keeps_what_may_not_be_preempted() -> None:
    jobs = [
        a_submission("pinned", gpus=2, duration_s=100, preemptible=False),
        a_submission("wide", 1, gpus=4, duration_s=10),
        a_submission("narrow", 2, gpus=2, duration_s=50),
    ]
    assert finished(run(SrtfPolicy(), jobs)) == {"pinned": 100.0, "wide": 110.0, "narrow": 52.0}

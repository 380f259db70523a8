"""What is said where a deadline is at risk: by how much it is missed, what would save it, and how to ask for that."""

from __future__ import annotations

import pytest

from coadapt.explain import deadline_advice
from coadapt.explain.deadline_advice import Advisor
from coadapt.explain.explanation import why
from coadapt.explain.job_progress import Standings
from coadapt.model import Configuration, JobStarted, JobSubmitted, Measured, Measurement, NodeJoined
from coadapt.planning import replan
from tests.builders import a_cluster, a_trained_job, on
from tests.unit.scheduler.phases import Told

ONE = on("n0")


def training(deadline_s: float | None, *, at_most: int = 4, until: int = 100, **fields: object) -> Told:
    """Job "a" of 6,400 examples, 16 a second on one of four GPUs since 10; measured on two before."""
    told = Told().tell(NodeJoined(node=a_cluster("1x4").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_trained_job(1, at_most=at_most, deadline_s=deadline_s, **fields)))
    told.decide(ONE).start(ONE, 1).tell(JobStarted(job="a", attempt=1), at=10.0)
    for replicas, atomic in ((2, 16), (2, 32), (1, 32)):
        sync_s = 0.1 if replicas > 1 else 0.0
        config = Configuration(nodes=1, replicas=replicas, atomic_batch=atomic)
        measured = Measurement(config=config, step_s=atomic / 16 + sync_s, sync_s=sync_s, count=10)
        told.tell(Measured(job="a", attempt=1, measurement=measured))
    for at in range(20, until + 1, 10):
        config = Configuration(nodes=1, replicas=1, atomic_batch=32)
        measured = Measurement(
            config=config, work=16.0 * (at - 10), step_s=2.0, count=5, grad_sqr=1.0, grad_var=20.0
        )
        told.tell(Measured(job="a", attempt=1, measurement=measured), at=float(at))
    return told


def advised(told: Told, now: float = 100.0) -> str:
    return Advisor(Standings()).of(told.state, told.state.jobs["a"], now)


@pytest.mark.parametrize("deadline_s", [None, 3600.0])
def test_nothing_is_said_of_a_job_that_is_in_time_or_has_no_deadline(deadline_s: float | None) -> None:
    assert advised(training(deadline_s)) == ""


def test_late_job_is_told_what_would_save_it() -> None:
    """310 s of work are left on one GPU, and 200 s until the deadline."""
    said = advised(training(300.0))
    assert said.startswith("Deadline: in 3m 20s; it will probably be missed (")
    assert ", by about 1m" in said
    assert "gpu with batch size" in said
    assert "coadapt update a --priority 1" in said


def test_size_beyond_the_jobs_own_limit_is_named_with_how_to_lift_it() -> None:
    assert "coadapt update a --max-gpus " in advised(training(300.0, at_most=1))


def test_where_nothing_helps_that_is_said() -> None:
    assert "No allocation on this cluster would meet it." in advised(training(106.0))


def test_deadline_that_has_passed_is_told_as_such() -> None:
    assert advised(training(90.0), 130.0) == "Deadline: missed by 40s."


def test_why_holds_the_advice() -> None:
    told = training(300.0)
    assert why(told.state, "a", 100.0).advice == advised(told)


def test_reading_again_fits_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked = training(300.0), []
    real = replan.replan
    monkeypatch.setattr(deadline_advice, "replan", lambda *a, **k: asked.append(1) or real(*a, **k))
    advisor = Advisor(Standings())
    said = [advisor.of(told.state, told.state.jobs["a"], 100.0 + second) for second in range(5)]
    assert all(said)
    assert len(asked) == 1

"""How jobs stand: progress, ETA, chance of being late, efficiency; and that reading again computes nothing again."""

from __future__ import annotations

import pytest

from coadapt.explain import job_progress
from coadapt.explain.job_progress import Standings
from coadapt.model import (
    Configuration,
    DecisionMade,
    Forecast,
    JobFinished,
    JobStarted,
    JobSubmitted,
    Measured,
    Measurement,
    NodeJoined,
    NodeLost,
)
from coadapt.model.snapshot import Phase
from coadapt.scheduler import FittedCurves
from tests.builders import a_cluster, a_job, a_trained_job, on
from tests.unit.scheduler.phases import HERE, Told, job_in

#: Two replicas on one node at M0 = 32.
CONFIG = Configuration(nodes=1, replicas=2, atomic_batch=16)


def trained(**fields: object) -> Told:
    """Job "a" of 6,400 examples, training on two GPUs since 10."""
    told = Told()
    for node in a_cluster("2x2").nodes:
        told.tell(NodeJoined(node=node), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_trained_job(2, at_most=4, **fields)))
    return told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), at=10.0)


def report(told: Told, at: float, work: float | None, **fields: object) -> Told:
    measurement = Measurement(config=CONFIG, work=work, **fields)  # type: ignore[arg-type]
    return told.tell(Measured(job="a", attempt=1, measurement=measurement), at=at)


def test_progress_is_the_share_of_what_was_declared() -> None:
    told = report(trained(), 20.0, 1600.0)
    assert Standings().of(told.state, told.state.jobs["a"], 25.0).progress == 0.25


def test_progress_of_a_job_that_declared_nothing_is_what_it_says_itself() -> None:
    """A script without a model: a quarter done after 50 s of training, so 150 s more."""
    told = Told().tell(NodeJoined(node=a_cluster("2x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2, duration_s=None)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), at=10.0)
    report(told, 60.0, None, count=0, epoch=1.0, share=0.25)
    standing = Standings().of(told.state, told.state.jobs["a"], 70.0)
    assert standing.progress == 0.25
    assert standing.eta is not None
    assert standing.eta.value == pytest.approx(210.0, rel=0.1)
    report(told, 110.0, None, count=0, epoch=2.0, share=0.5)
    assert Standings().of(told.state, told.state.jobs["a"], 110.0).progress == 0.5


def test_what_a_log_tells_counts_more_than_the_forecast_from_the_start() -> None:
    """No decision follows the reports of a lone job: its ETA would stay the first guess."""
    told = Told().tell(NodeJoined(node=a_cluster("2x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2, duration_s=None)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), at=10.0)
    guess = Forecast(left_s=600.0, low_s=60.0, high_s=10_000.0)
    told.tell(DecisionMade(decision=2, targets={"a": HERE}, forecasts={"a": guess}))
    standings, job = Standings(), told.state.jobs["a"]
    first = standings.of(told.state, job, 10.0).eta
    assert first is not None
    assert first.value == pytest.approx(610.0)
    report(told, 90.0, None, count=0, share=0.8)
    eta = standings.of(told.state, job, 90.0).eta
    assert eta is not None
    assert eta.value == pytest.approx(110.0, abs=0.5)
    assert eta.high is not None
    # one pace was seen: the end is not known to the second
    assert 90.0 < eta.low < 105.0
    assert 115.0 < eta.high < 150.0


@pytest.mark.parametrize("epochs", [1.0, None])
def test_job_with_a_model_that_prints_plain_lines_goes_by_its_log(epochs: float | None) -> None:
    """It never says how many examples it did: the declared ones would stay at 0%, and seconds are no examples."""
    told = report(trained(epochs=epochs), 50.0, None, count=0, share=0.4)
    job = told.state.jobs["a"]
    assert job.told is None
    standing = Standings().of(told.state, job, 50.0)
    assert standing.progress == 0.4
    assert standing.eta is not None
    assert standing.eta.value == pytest.approx(110.0, abs=0.5)


def test_length_that_a_training_job_tells_counts_where_its_specification_declares_none() -> None:
    """1,600 of 6,400 examples by its own word, 32 a second."""
    told, silent = trained(epochs=None), trained(epochs=None)
    for at in range(20, 61, 10):
        report(told, float(at), 32.0 * (at - 10), share=32.0 * (at - 10) / 6400)
        report(silent, float(at), 32.0 * (at - 10))
    job = told.state.jobs["a"]
    assert job.told == pytest.approx(6400.0)
    standing = Standings().of(told.state, job, 60.0)
    assert standing.progress == pytest.approx(0.25)
    assert standing.eta is not None
    assert standing.eta.value == pytest.approx(210.0, rel=0.1)
    assert silent.state.jobs["a"].told is None
    assert FittedCurves().curve(job).remaining().quantile(0.5) == pytest.approx(4800.0, rel=0.05)


def test_progress_of_a_job_without_a_model_is_the_time_it_trained() -> None:
    told = job_in(Phase.RUNNING)  # 100 s, trains since 5
    assert Standings().of(told.state, told.state.jobs["a"], 30.0).progress == 0.25
    ends = Standings().of(told.state, told.state.jobs["a"], 30.0).eta
    assert ends is not None
    assert ends.value == pytest.approx(105.0, rel=1e-3)


def test_steady_pace_tells_the_end_of_a_job_that_nobody_forecast() -> None:
    """32 examples a second since 10: 6,400 of them take 200 s."""
    told = trained()
    for at in range(20, 101, 10):
        report(told, float(at), 32.0 * (at - 10))
    eta = Standings().of(told.state, told.state.jobs["a"], 104.0).eta
    assert eta is not None
    assert eta.value == pytest.approx(210.0, rel=0.03)
    assert eta.high is not None
    assert 104.0 <= eta.low < eta.value < eta.high


def test_forecast_of_the_policy_is_aged_as_long_as_it_is_about_what_the_job_has() -> None:
    told = trained(deadline_s=700.0)
    forecast = Forecast(left_s=500.0, low_s=250.0, high_s=1000.0)
    there = on(("n1", 2))
    told.tell(DecisionMade(decision=2, targets={"a": there}, forecasts={"a": forecast}))
    job, standings = told.state.jobs["a"], Standings()
    at_once = standings.of(told.state, job, 10.0)
    later = standings.of(told.state, job, 410.0)
    assert at_once.eta is not None
    assert later.eta is not None
    assert at_once.eta.value == pytest.approx(510.0)
    assert 510.0 < later.eta.value < 1100.0
    assert at_once.late is not None
    assert later.late is not None
    assert 0.1 < at_once.late < later.late < 1.0
    told.tell(NodeLost(node="n1"), at=420.0)
    assert standings.of(told.state, job, 430.0).eta is None


def test_deadline_that_has_passed_is_missed_and_one_that_was_met_is_not() -> None:
    told = trained(deadline_s=100.0)
    job = told.state.jobs["a"]
    assert Standings().of(told.state, job, 101.0).late == 1.0
    told.tell(JobFinished(job="a", attempt=1, outcome="succeeded"), at=90.0)
    stands = Standings().of(told.state, job, 500.0)
    assert (stands.late, stands.progress, stands.eta, stands.gpu_s) == (0.0, 1.0, None, 180.0)


def test_waiting_job_without_evidence_has_no_eta() -> None:
    told = job_in(Phase.PENDING)
    stands = Standings().of(told.state, told.state.jobs["a"], 50.0)
    assert (stands.eta, stands.late, stands.goodput, stands.efficiency) == (None, None, None, None)


def test_efficiency_and_goodput_are_as_last_measured() -> None:
    """phi = M0 var / sqr = 32; at M = 32 all is useful. Between the reports 320 examples in 10 s."""
    told = report(trained(), 20.0, 160.0, step_s=1.0, grad_sqr=1.0, grad_var=1.0)
    job = told.state.jobs["a"]
    first = Standings().of(told.state, job, 21.0)
    assert (first.efficiency, first.goodput) == (1.0, 32.0)
    report(told, 30.0, 400.0)
    assert Standings().of(told.state, job, 31.0).goodput == 24.0


def test_reading_again_computes_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = trained()
    for at in range(20, 101, 10):
        report(told, float(at), 32.0 * (at - 10))
    calls, computed = [], job_progress.expected

    def counted(*args: object) -> object:
        calls.append(args)
        return computed(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(job_progress, "expected", counted)
    standings, job = Standings(), told.state.jobs["a"]
    for now in range(101, 150):
        standings.of(told.state, job, float(now))
    assert len(calls) == 1
    report(told, 150.0, 4500.0)
    standings.of(told.state, job, 151.0)
    assert len(calls) == 2


def test_job_of_unknown_length_without_a_model_is_told_by_what_it_has_attained() -> None:
    told = Told().tell(NodeJoined(node=a_cluster("1x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2, duration_s=None)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), at=10.0)
    eta = Standings().of(told.state, told.state.jobs["a"], 5000.0).eta
    assert eta is not None
    assert eta.value > 5000.0


def test_figures_that_overflow_leave_the_end_unknown_and_spoil_no_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def overflows(job: object, prior: object) -> job_progress.Expected:
        raise OverflowError("math range error")

    told = report(report(trained(), 10.0, 320.0), 20.0, 640.0)
    assert Standings().of(told.state, told.state.jobs["a"], 20.0).eta is not None
    monkeypatch.setattr(job_progress, "expected", overflows)
    standing = Standings().of(told.state, told.state.jobs["a"], 20.0)
    assert (standing.eta, standing.restarts) == (None, 0)

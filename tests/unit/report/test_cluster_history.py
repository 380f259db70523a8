from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import JobFinished, Node, NodeDrained, NodeJoined, NodeOpened
from coadapt.model.snapshot import Phase
from coadapt.report import History, summarise
from coadapt.scheduler import SchedulerState
from tests.unit.report.logs import Log, a_job_without_length, an_adaptive_job, on, two_jobs


def test_history_sums_what_each_job_held_and_lost() -> None:
    jobs = History.of(two_jobs().records).jobs
    a, b = jobs["a"], jobs["b"]
    # a: 4 GPUs 10..50, 2 GPUs 50..100; changing 4 x 10 and 2 x 10
    assert (a.held_gpu_s, a.changing_gpu_s, a.waited_s, a.restarts) == (160 + 100, 40 + 20, 10, 1)
    # b: 4 GPUs 50..80, changing 4 x 5; waited 30..50
    assert (b.held_gpu_s, b.changing_gpu_s, b.waited_s, b.restarts) == (120, 20, 20, 0)
    assert (a.jct_s, b.jct_s, a.started_at, b.started_at) == (100, 50, 10, 50)
    assert a.mean_gpus == pytest.approx(260 / 90)


def test_history_lists_stays_by_placement_and_phase() -> None:
    stays = History.of(two_jobs().records).jobs["a"].stays
    assert [(s.start, s.end, s.gpus, s.training) for s in stays] == [
        (10, 20, 4, False),
        (20, 50, 4, True),
        (50, 60, 2, False),
        (60, 100, 2, True),
    ]
    assert stays[1].placement == on(n0=4)


def test_history_counts_both_placements_until_the_old_is_released() -> None:
    log = Log()
    log.submit(0, "a")
    log.start(0, "a", on(n0=4))
    log.resize(10, "a", on(n1=4), release=3, took=5)
    log.finish(20, "a")
    a = History.of(log.records).jobs["a"]
    assert a.held_gpu_s == 4 * 10 + 8 * 3 + 4 * 7
    assert a.changing_gpu_s == 8 * 3 + 4 * 2


def test_history_counts_stopping_as_changing_and_pausing_as_waiting() -> None:
    log = Log()
    log.submit(0, "a")
    log.start(0, "a", on(n0=2))
    log.pause(10, "a", took=2)
    log.start(20, "a", on(n0=2))
    log.finish(30, "a")
    a = History.of(log.records).jobs["a"]
    assert (a.held_gpu_s, a.changing_gpu_s, a.waited_s, a.restarts) == (44, 4, 8, 1)


def test_history_counts_no_gpus_of_a_drained_node_that_joins_again() -> None:
    log = Log(nodes=2, gpus=4)
    log.event(10, NodeDrained(node="n0"))
    log.lose(20, "n0")
    log.event(30, NodeJoined(node=Node(name="n0", gpus=4)))
    assert History.of(log.records).gpu_steps == [(0, 8), (10, 4), (20, 4), (30, 4)]
    log.event(40, NodeOpened(node="n0"))
    assert History.of(log.records).gpu_steps[-1] == (40, 8)


def test_history_ignores_reports_of_an_older_attempt() -> None:
    log = Log()
    log.submit(0, "a")
    log.start(0, "a", on(n0=2))
    log.pause(10, "a")
    log.start(20, "a", on(n0=2))
    log.event(25, JobFinished(job="a", attempt=1, outcome="failed"))
    log.finish(30, "a")
    assert History.of(log.records).jobs["a"].jct_s == 30


def test_history_retries_a_failed_job_before_it_ends() -> None:
    log = Log()
    log.submit(0, "a", a_job_without_length(retries=1))
    log.start(0, "a", on(n0=1))
    log.finish(5, "a", "failed")
    history = History.of(log.records)
    assert history.jobs["a"].phase is Phase.PAUSED
    log.start(6, "a", on(n0=1))
    log.finish(9, "a", "failed")
    job = History.of(log.records).jobs["a"]
    assert (job.outcome, job.ended_at, job.jct_s) == ("failed", 9, None)


def test_history_starts_dependents_when_their_predecessor_is_done() -> None:
    log = Log()
    log.submit(0, "a")
    log.submit(0, "b", a_job_without_length(after=("a",)))
    log.start(0, "a", on(n0=1))
    log.finish(7, "a")
    history = History.of(log.records)
    assert history.jobs["b"].ready_at == 7
    assert (history.active.value, history.queued.value) == (1, 1)


def test_history_cancels_waiting_jobs_and_their_dependents_at_once() -> None:
    log = Log()
    log.submit(0, "a")
    log.submit(1, "b", a_job_without_length(after=("a",)))
    log.cancel(4, "a")
    history = History.of(log.records)
    assert [(j.outcome, j.ended_at) for j in history.jobs.values()] == [("cancelled", 4), ("cancelled", 4)]
    assert (history.active.value, history.queued.value) == (0, 0)


def test_history_rates_training_by_the_report_that_follows_it() -> None:
    log = Log()
    log.submit(0, "a", an_adaptive_job(initial=100))
    log.start(0, "a", on(n0=2))
    log.measure(10, "a", batch=200, phi_over_m0=1.0)  # (100 + 100) / (100 + 200)
    log.measure(30, "a", batch=200, phi_over_m0=2.0)  # (200 + 100) / (200 + 200)
    log.finish(40, "a")  # the last 10 s go by the last report
    job = History.of(log.records).jobs["a"]
    assert job.mean_efficiency == pytest.approx((10 * 2 / 3 + 30 * 3 / 4) / 40)
    assert [p.efficiency for p in job.progress] == pytest.approx([2 / 3, 3 / 4])


def test_history_rates_training_before_a_restart_by_the_first_report_after_it() -> None:
    log = Log()
    log.submit(0, "a", an_adaptive_job(initial=100))
    log.start(0, "a", on(n0=1))
    log.pause(10, "a")
    log.start(20, "a", on(n0=4))
    log.measure(30, "a", batch=100, phi_over_m0=1.0)
    job = History.of(log.records).jobs["a"]
    assert (job.rated_gpu_s, job.mean_efficiency) == (50, 1.0)


def test_history_leaves_the_efficiency_unknown_without_gradient_statistics() -> None:
    log = Log()
    log.submit(0, "a", an_adaptive_job())
    log.start(0, "a", on(n0=1))
    log.measure(10, "a", batch=256, phi_over_m0=None)
    history = History.of(log.records)
    assert history.jobs["a"].mean_efficiency is None
    assert summarise(history).avg_efficiency is None


def test_history_settle_may_be_called_at_any_time() -> None:
    whole, stepwise = History(), History()
    for record in two_jobs().records:
        whole.add(record)
        stepwise.add(record)
        stepwise.settle()
    whole.settle()
    assert whole.jobs == stepwise.jobs
    assert summarise(whole) == summarise(stepwise)


def test_history_without_detail_has_the_same_summary() -> None:
    records = two_jobs().records
    brief = History.of(records, detail=False)
    assert summarise(brief) == summarise(History.of(records))
    assert not any(job.stays or job.progress for job in brief.jobs.values())


def test_history_keeps_reasons_and_counts_decisions() -> None:
    log = Log()
    log.submit(0, "a")
    log.decide(1, "a", "first in the queue")
    history = History.of(log.records)
    assert history.decisions == 1
    assert [(at, why.text) for at, why in history.jobs["a"].reasons] == [(1, "first in the queue")]


Move = tuple[int, int, int, int]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4), st.integers(0, 20)), max_size=60
    )
)
def test_history_of_any_log_adds_up(moves: list[Move]) -> None:
    """Jobs on nodes of their own start, resize, pause and finish in any order."""
    log, at = Log(nodes=5, gpus=4), 0.0
    phase = dict.fromkeys(range(5), "new")
    for what, job, gpus, wait in moves:
        at += wait
        name, where = f"j{job}", on(**{f"n{job}": gpus})
        if phase[job] == "new":
            log.submit(at, name)
            phase[job] = "idle"
        elif phase[job] == "idle":
            log.start(at, name, where)
            phase[job] = "runs"
        elif phase[job] == "runs" and what < 2:
            log.resize(at, name, where)
        elif phase[job] == "runs" and what == 2:
            log.pause(at, name)
            phase[job] = "idle"
        elif phase[job] == "runs" and what == 3:
            log.finish(at, name)
            phase[job] = "done"
    history = History.of(log.records)
    summary = summarise(history)
    state = SchedulerState()
    for record in log.records:
        state.apply(record)
    for each in history.jobs.values():
        # a report must not tell another story than the scheduler's own state
        theirs = state.jobs[each.id]
        assert (each.phase, each.changes, each.gpus) == (theirs.phase, theirs.changes, theirs.held_gpus)
        assert each.held_gpu_s == pytest.approx(theirs.attained_gpu_s(state.now))
        if each.ended_at is None:
            assert each.waited_s == pytest.approx(theirs.waited_s(state.now))
        assert sum(s.gpus * (s.end - s.start) for s in each.stays) == pytest.approx(each.held_gpu_s)
        assert all(a.end <= b.start for a, b in zip(each.stays, each.stays[1:], strict=False))
    assert history.held.total == pytest.approx(sum(j.held_gpu_s for j in history.jobs.values()))
    assert history.changing.total == pytest.approx(sum(j.changing_gpu_s for j in history.jobs.values()))
    assert history.held.value == sum(j.gpus for j in history.jobs.values())
    assert history.queued.value == sum(p == "idle" for p in phase.values())
    assert summary.utilisation is None or 0 <= summary.utilisation <= 1
    assert summary.restart_share is None or 0 <= summary.restart_share <= 1

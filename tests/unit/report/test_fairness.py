from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.report import History, fair_shares, finish_time_fairness, rigid_alone_s
from tests.unit.report.logs import Log, a_job_without_length, on, two_jobs


def test_fairness_asks_for_the_time_alone_on_an_equal_part() -> None:
    asked: dict[str, int] = {}

    def alone_s(job: str, gpus: int) -> float | None:
        asked[job] = gpus
        return 40.0 if job == "a" else None

    rho = finish_time_fairness(History.of(two_jobs().records), alone_s)
    # a lives 0..100 with b there for 50 of it: n = 1.5, 8 / 1.5 -> 6; b's whole life has n = 2
    assert asked == {"a": 6, "b": 4}
    assert rho == {"a": 2.5}


def test_fairness_share_follows_nodes_that_leave() -> None:
    log = Log(nodes=2, gpus=4)
    log.submit(0, "a")
    log.start(0, "a", on(n0=1))
    log.lose(50, "n1")
    log.finish(100, "a")
    assert fair_shares(History.of(log.records), ["a"]) == [6]  # 8 GPUs for one half, 4 for the other


def test_fairness_of_a_job_smaller_than_its_share_scales_nothing() -> None:
    spec = a_job_without_length(requested=4, duration_s=60.0)
    assert [rigid_alone_s(spec, gpus) for gpus in (8, 4, 2, 1)] == [60, 60, 120, 240]
    assert rigid_alone_s(a_job_without_length(profile="resnet", duration_s=60.0), 4) is None
    assert rigid_alone_s(a_job_without_length(), 4) is None


@settings(max_examples=50)
@given(
    lives=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=12),
    gpus=st.integers(1, 64),
)
def test_fair_shares_equal_the_definition_second_by_second(lives: list[tuple[int, int]], gpus: int) -> None:
    log = Log(nodes=1, gpus=gpus)
    events = [(start, 1, i) for i, (start, _) in enumerate(lives)]
    events += [(start + length, 0, i) for i, (start, length) in enumerate(lives)]
    for at, submits, i in sorted(events):
        if submits:
            log.submit(at, f"j{i}")
            log.start(at, f"j{i}", on(n0=1))
        else:
            log.finish(at, f"j{i}")
    shares = fair_shares(History.of(log.records), [f"j{i}" for i in range(len(lives))])
    for (start, length), share in zip(lives, shares, strict=True):
        active = sum(s <= t < s + k for t in range(start, start + length) for s, k in lives)
        assert share == math.ceil(gpus * length / active - 1e-9)


def test_fairness_knows_nothing_of_jobs_that_did_not_finish() -> None:
    log = Log()
    log.submit(0, "a", a_job_without_length(duration_s=5.0))
    log.start(0, "a", on(n0=1))
    log.finish(9, "a", "failed")
    assert finish_time_fairness(History.of(log.records)) == {}


def test_fairness_share_of_a_job_that_waited_for_another_is_at_most_the_cluster() -> None:
    log = Log(nodes=1, gpus=4)
    log.submit(0, "b", a_job_without_length(after=("a",)))
    log.submit(50, "a")
    log.start(50, "a", on(n0=1))
    log.finish(60, "a")
    log.start(60, "b", on(n0=1))
    log.finish(70, "b")
    assert fair_shares(History.of(log.records), ["b"]) == [4]
    assert finish_time_fairness(History.of(log.records), lambda job, gpus: 35.0)["b"] == pytest.approx(2.0)

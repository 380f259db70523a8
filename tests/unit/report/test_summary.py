from __future__ import annotations

import msgspec
import numpy as np
import pytest

from coadapt.errors import InputError
from coadapt.report import History, Summary, compare, completion_times, summarise
from tests.unit.report.logs import Log, a_job_without_length, an_adaptive_job, on, two_jobs

KEYS = [
    "num_jobs",
    "num_finished",
    "num_unfinished",
    "avg_jct_s",
    "p50_jct_s",
    "p90_jct_s",
    "p99_jct_s",
    "slowest10_jct_s",
    "makespan_s",
    "gpu_hours",
    "utilisation",
    "num_restarts",
    "restart_share",
    "avg_wait_s",
    "p90_wait_s",
    "avg_efficiency",
    "rho_mean",
    "rho_max",
    "rho_unfair_share",
    "decisions",
    "decision_ms",
    "cpu_s",
    "num_deadlines",
    "num_deadlines_missed",
]


def test_summary_of_two_jobs_matches_paper_and_pencil() -> None:
    summary = summarise(History.of(two_jobs().records), cpu_s=1.5)
    # JCT 100 and 50; waits 10 and 20; held 260 + 120 of 8 x 100; changing 60 + 20
    assert (summary.num_jobs, summary.num_finished, summary.num_unfinished) == (2, 2, 0)
    assert (summary.avg_jct_s, summary.p50_jct_s, summary.p90_jct_s) == (75, 75, 95)
    assert summary.p99_jct_s == pytest.approx(99.5)
    assert (summary.slowest10_jct_s, summary.makespan_s) == (100, 100)
    assert summary.gpu_hours == pytest.approx(380 / 3600)
    assert summary.utilisation == pytest.approx(380 / 800)
    assert (summary.num_restarts, summary.avg_wait_s, summary.p90_wait_s) == (1, 15, 19)
    assert summary.restart_share == pytest.approx(80 / 380)
    # fair share: a 8 / 1.5 -> 6 GPUs, b 8 / 2 -> 4 GPUs, both at least the 4 asked for: 100 / 60 and 50 / 25
    assert summary.rho_mean == pytest.approx((100 / 60 + 2) / 2)
    assert summary.rho_max == 2
    assert summary.rho_unfair_share == 1.0
    assert (summary.avg_efficiency, summary.decision_ms, summary.cpu_s) == (None, None, 1.5)


def test_summary_always_has_every_key() -> None:
    empty = summarise(History.of(Log().records))
    assert list(msgspec.to_builtins(empty)) == KEYS
    assert list(msgspec.structs.asdict(empty)) == KEYS
    assert msgspec.json.decode(msgspec.json.encode(empty), type=Summary) == empty


def test_summary_counts_only_jobs_that_succeeded_as_finished() -> None:
    log = Log()
    for name, start in (("a", 0), ("b", 1), ("c", 2)):
        log.submit(start, name)
        log.start(start, name, on(n0=1))
    log.finish(11, "a")
    log.finish(12, "b", "failed")
    log.cancel(13, "c")
    summary = summarise(History.of(log.records))
    assert (summary.num_jobs, summary.num_finished, summary.num_unfinished) == (3, 1, 2)
    assert (summary.avg_jct_s, summary.makespan_s) == (11, 12)


def test_summary_utilisation_follows_nodes_that_join_and_leave() -> None:
    log = Log(nodes=2, gpus=4)
    log.submit(10, "a")
    log.start(10, "a", on(n0=4))
    log.lose(20, "n1")
    log.finish(30, "a")
    # after the last finish: outside the makespan
    log.submit(40, "b")
    log.start(40, "b", on(n0=4))
    log.submit(50, "c")
    # 4 of 8 GPUs for 10 s, 4 of 4 for 10 s
    assert summarise(History.of(log.records)).utilisation == pytest.approx(80 / 120)


def test_summary_utilisation_stays_below_one_while_a_lost_node_is_still_held() -> None:
    log = Log(nodes=1, gpus=4)
    log.submit(0, "a")
    log.start(0, "a", on(n0=4))
    log.lose(10, "n0")
    log.finish(20, "a")
    assert summarise(History.of(log.records)).utilisation == 1.0


def test_summary_weights_efficiency_by_gpu_time() -> None:
    log = Log()
    log.submit(0, "a", an_adaptive_job(initial=100))
    log.submit(0, "b", an_adaptive_job(initial=100))
    log.start(0, "a", on(n0=1))
    log.start(0, "b", on(n1=3))
    log.measure(10, "a", batch=100, phi_over_m0=1.0)  # 1
    log.measure(10, "b", batch=300, phi_over_m0=1.0)  # 1/2
    assert summarise(History.of(log.records)).avg_efficiency == pytest.approx((1 * 1 + 3 * 0.5) / 4)


def test_summary_counts_deadlines_and_those_missed() -> None:
    log = Log()
    deadlines = {"in time": 11.0, "just": 10.0, "late": 9.5, "failed": 99.0, "never": 99.0, "free": None}
    for name, deadline_s in deadlines.items():
        log.submit(5, name, msgspec.structs.replace(a_job_without_length(name), deadline_s=deadline_s))
    ran = [name for name in deadlines if name != "never"]
    for name in ran:
        log.start(5, name, on(n0=1))
    for name in ran:
        log.finish(15, name, "failed" if name == "failed" else "succeeded")
    summary = summarise(History.of(log.records))
    assert (summary.num_deadlines, summary.num_deadlines_missed) == (5, 3)
    assert summarise(History.of(two_jobs().records)).num_deadlines_missed == 0


def test_summary_gives_cpu_per_decision() -> None:
    log = Log()
    log.submit(0, "a")
    log.decide(1, "a", "x")
    log.decide(2, "a", "y")
    assert summarise(History.of(log.records), decision_cpu_s=0.5).decision_ms == 250


def test_compare_pairs_jobs_and_averages_seeds_first() -> None:
    runs = {
        "slow": [{"a": 10.0, "b": 20.0, "only": 1000.0}, {"a": 30.0, "b": 20.0}],
        "fast": [{"b": 10.0, "a": 10.0}],
    }
    ratios = compare(runs, "slow")
    # a: 20, b: 20 against 10 and 10: every resample gives one half
    assert ratios["fast"].jobs == 2
    assert (ratios["fast"].ratio, ratios["fast"].low, ratios["fast"].high) == pytest.approx((0.5, 0.5, 0.5))
    assert ratios["slow"].ratio == 1.0


def test_compare_interval_covers_the_ratio_and_repeats_with_its_seed() -> None:
    rng = np.random.default_rng(5)
    base = {f"j{i}": float(x) for i, x in enumerate(rng.lognormal(8, 1, 200))}
    other = {job: jct * float(rng.uniform(0.3, 0.9)) for job, jct in base.items()}
    first, again = (compare({"base": [base], "other": [other]}, "base", seed=3)["other"] for _ in range(2))
    assert first == again
    assert first.low < first.ratio < first.high
    # pairing: jobs that are long under both do not widen the interval
    assert first.high - first.low < 0.12
    assert first != compare({"base": [base], "other": [other]}, "base", seed=4)["other"]


def test_compare_names_the_runs_there_are() -> None:
    with pytest.raises(InputError, match="fifo"):
        compare({"fifo": [{}]}, "pollux")


def test_completion_times_are_those_of_jobs_that_succeeded() -> None:
    assert completion_times(History.of(two_jobs().records)) == {"a": 100, "b": 50}

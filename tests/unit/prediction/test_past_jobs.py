from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import Batch, Configuration, JobSpec, Measurement
from coadapt.prediction.remaining.past_jobs import (
    NOISE_SHARES,
    PastJob,
    Pool,
    Prior,
    add,
    likeness,
    past_job,
    prior_for,
    signature,
)
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, observe

BATCH = Batch(initial=32, max=256, per_gpu_min=8, per_gpu_max=64)


def a_spec(name="bert-base-lr3e-5-a81f0c", **changes):
    return JobSpec(name=name, batch=BATCH, data_size=1000, user="ada", **changes)


def a_table(step_s=0.5, replicas=(1, 2)):
    table = EMPTY_TABLE
    for count in replicas:
        config = Configuration(nodes=1, replicas=count, atomic_batch=32)
        table = observe(table, Measurement(config=config, step_s=step_s, sync_s=0.1 * step_s))
    return table


def a_past_job(name="bert-base-lr1e-4-77c0aa", **facts):
    return past_job(a_spec(name), **{"total_work": 5000.0, "finished_at": 1.0, **facts})


def test_signature_takes_numbers_and_hashes_out():
    assert signature("bert-base-lr3e-5-a81f0c") == signature("bert-base-lr1e-4-77c0aa")
    assert signature("resnet50_run_12") == signature("resnet101_run_3")
    assert signature("bert-base") != signature("gpt-small")


def test_prior_of_a_twin_has_all_that_is_known_of_it():
    job = a_past_job(
        table=a_table(),
        noise=((0.0, 100.0), (1.0, 400.0)),
        declared_work=10000.0,
        change_cost_s=20.0,
        changes=3,
    )
    prior = prior_for(add(Pool(), job), a_spec())
    assert prior.matches[0].likeness == pytest.approx(1.0)
    assert "name 100%" in prior.matches[0].why
    assert prior.table == job.table
    assert (prior.past, prior.past_ratios) == ((5000.0,), (0.5,))
    assert len(prior.noise) == len(NOISE_SHARES)
    assert prior.noise[5].value == pytest.approx(200.0)  # between them by its logarithm
    assert prior.change_cost_s is not None
    assert prior.change_cost_s.low < 20 < prior.change_cost_s.upper


def test_prior_of_an_unknown_job_is_empty():
    pool = add(Pool(), PastJob(name="gpt", data_size=10**9, batch=4096, total_work=1.0))
    assert prior_for(pool, a_spec()) == Prior()
    assert prior_for(Pool(), a_spec()) == Prior()


def test_prior_weighs_a_twin_more_than_a_cousin():
    pool = add(add(Pool(), a_past_job()), a_past_job("bert-large-7", total_work=90000.0))
    prior = prior_for(pool, a_spec())
    assert prior.past[0] == 5000.0
    assert prior.likeness[0] > 3 * prior.likeness[1]


def test_prior_takes_the_newest_run_of_a_configuration():
    pool = add(Pool(), a_past_job(table=a_table(0.5, (1, 2)), finished_at=1.0))
    pool = add(pool, a_past_job(table=a_table(0.4, (2, 4)), finished_at=2.0))
    rows = prior_for(pool, a_spec()).table.rows
    assert [(row.replicas, row.step_s) for row in rows] == [(1, 0.5), (2, 0.4), (4, 0.4)]


def test_prior_interval_narrows_with_more_past_jobs():
    one, many = Pool(), Pool()
    for number in range(10):
        job = a_past_job(change_cost_s=20.0, changes=1, finished_at=float(number))
        many = add(many, job)
        one = one if one.jobs else add(one, job)
    wide, narrow = prior_for(one, a_spec()).change_cost_s, prior_for(many, a_spec()).change_cost_s
    assert wide is not None
    assert narrow is not None
    assert narrow.upper / narrow.low < wide.upper / wide.low


def test_likeness_counts_only_what_both_tell():
    assert likeness(PastJob(name=""), PastJob(name=""))[0] == 0.0
    score, why = likeness(PastJob(name="a", parameters=1e6), PastJob(name="a", parameters=2e6))
    assert 0.5 < score < 1
    assert "parameters 50%" in why
    assert likeness(PastJob(name="a", parameters=1e6), PastJob(name="a"))[0] == 1.0


def test_add_leaves_out_the_oldest_of_the_largest_group():
    pool = add(Pool(limit=3), PastJob(name="yearly", finished_at=0.0))
    for number in range(5):
        pool = add(pool, PastJob(name=f"nightly-{number}", finished_at=float(1 + number)))
    assert [job.name for job in pool.jobs] == ["yearly", "nightly-3", "nightly-4"]


def test_add_bounds_what_is_kept_of_one_job_and_drops_what_is_no_noise():
    noise = ((0.0, float("nan")), (2.0, 5.0), *((i / 1000, 10.0) for i in range(1000)))
    job = add(Pool(), a_past_job(noise=noise, table=a_table(0.5, range(1, 301)))).jobs[0]
    assert len(job.table.rows) <= 200
    assert len(job.noise) <= 32
    assert (job.noise[0][0], job.noise[-1][0]) == (0.0, 0.999)


@given(st.lists(st.text(max_size=8), max_size=30), st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_add_never_exceeds_the_limit_and_keeps_the_newest_of_each_kept_group(names, limit):
    pool = Pool(limit=limit)
    for at, name in enumerate(names):
        pool = add(pool, PastJob(name=name, finished_at=float(at)))
    assert len(pool.jobs) == min(len(names), limit)
    for job in pool.jobs:
        newest = max(at for at, name in enumerate(names) if signature(name) == signature(job.name))
        assert any(kept.finished_at == newest for kept in pool.jobs)

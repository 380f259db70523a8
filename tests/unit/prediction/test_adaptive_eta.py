from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model import Batch, Configuration, JobSpec, Measurement
from coadapt.prediction.gradient_noise import gain
from coadapt.prediction.remaining.adaptive_run import AdaptiveRun, expect, observe, resume, sharing, start
from coadapt.prediction.remaining.past_jobs import Pool, Prior, add, past_job, prior_for

M0, TOTAL = 64, 640_000.0
LIMITS = Batch(initial=M0, max=1024, per_gpu_min=16, per_gpu_max=256)


def step_s(config: Configuration) -> float:
    """How this world works: compute grows with the batch, synchronisation with the replicas."""
    return 0.02 + 0.002 * config.atomic_batch + 0.01 * (config.replicas - 1)


def phi(work: float) -> float:
    """The noise scale grows tenfold."""
    return 100.0 * (1 + 9 * work / TOTAL)


def speed(config: Configuration, work: float) -> float:
    scale = config.batch / M0
    return M0 * gain(1.0, phi(work) / M0, scale) / step_s(config)


def trained(
    run: AdaptiveRun,
    config: Configuration,
    until: float,
    *,
    at: float = 0.0,
    work: float = 0.0,
    slow: float = 1.0,
) -> tuple[AdaptiveRun, float, float]:
    """Reports every 20 s until so much work is done; what really happens takes ``slow`` times as long as steps say."""
    run = resume(run, at)
    while True:
        report = Measurement(
            config=config,
            step_s=step_s(config),
            sync_s=0.01 * (config.replicas - 1),
            grad_sqr=1.0,
            grad_var=phi(work) / M0,
            work=work,
        )
        run = observe(run, at, report)
        if work >= until:
            return run, at, work
        for _ in range(20):
            work += speed(config, work) / slow
        at += 20.0


def truly_left(config: Configuration, work: float, slow: float = 1.0) -> float:
    seconds = 0.0
    while work < TOTAL:
        work += speed(config, work) / slow
        seconds += 1.0
    return seconds


def a_config(replicas: int = 1, atomic: int = 64) -> Configuration:
    return Configuration(nodes=1, replicas=replicas, atomic_batch=atomic)


def a_prior() -> Prior:
    run = start(M0)
    at = work = 0.0
    for replicas, until in ((1, 0.2), (2, 0.5), (4, 1.0)):
        run, at, work = trained(run, a_config(replicas), until * TOTAL, at=at, work=work)
    course = tuple((min(math.exp(w) / TOTAL, 1.0), math.exp(p)) for w, p, _ in run.noise.points)
    spec = JobSpec(name="bert-1", batch=LIMITS)
    past = past_job(spec, finished_at=1.0, table=run.table, total_work=TOTAL, noise=course)
    return prior_for(add(Pool(), past), replace(spec, name="bert-2"))


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_time_left_of_a_job_that_stays_where_it_is(replicas: int) -> None:
    config = a_config(replicas)
    run, _, work = trained(start(M0), config, TOTAL / 2)
    expected = expect(run, limits=LIMITS, total=TOTAL)
    assert expected is not None
    assert expected.time_left(config, work) == pytest.approx(truly_left(config, work), rel=0.05)


def test_the_new_pace_is_known_before_the_first_report_after_a_resize() -> None:
    run, at, work = trained(start(M0), a_config(1), 0.2 * TOTAL)
    run, at, work = trained(run, a_config(4), 0.3 * TOTAL, at=at, work=work)
    run, at, work = trained(run, a_config(1), 0.5 * TOTAL, at=at, work=work)
    expected = expect(resume(run, at + 30), limits=LIMITS, total=TOTAL)
    assert expected is not None
    assert expected.time_left(a_config(4), work) == pytest.approx(truly_left(a_config(4), work), rel=0.08)


def test_what_steps_do_not_say_is_learned_from_time() -> None:
    """Loading data, a straggler: everything takes half as long again as the reported steps."""
    config = a_config(2)
    run, _, work = trained(start(M0), config, TOTAL / 2, slow=1.5)
    expected = expect(run, limits=LIMITS, total=TOTAL)
    assert expected is not None
    assert expected.time_left(config, work) == pytest.approx(truly_left(config, work, slow=1.5), rel=0.08)
    assert 1.3 < expected.level(("gpu", 1, 2)) < 1.55
    assert expected.level(("gpu", 1, 4)) == pytest.approx(expected.level(("gpu", 1, 2)), rel=0.15)


def test_past_jobs_tell_of_gpus_that_were_never_had() -> None:
    run, _, work = trained(start(M0), a_config(1), 0.1 * TOTAL)
    alone, taught = (expect(run, limits=LIMITS, total=TOTAL, prior=prior) for prior in (None, a_prior()))
    assert alone is not None
    assert taught is not None
    true = truly_left(a_config(4), work)
    far, near = (abs(math.log(each.time_left(a_config(4), work) / true)) for each in (alone, taught))
    assert near < 0.1
    assert near < far


def test_past_jobs_that_are_hardly_alike_say_nothing() -> None:
    run, _, work = trained(start(M0), a_config(1), 0.1 * TOTAL)
    prior = a_prior()
    stranger = replace(prior, matches=tuple(replace(each, likeness=0.5) for each in prior.matches))
    alone, other = (expect(run, limits=LIMITS, total=TOTAL, prior=each) for each in (None, stranger))
    assert alone is not None
    assert other is not None
    assert other.time_left(a_config(2), work) == alone.time_left(a_config(2), work)


def test_a_job_that_has_reported_nothing_is_not_guessed() -> None:
    assert expect(start(M0), limits=LIMITS, total=TOTAL) is None
    taught = expect(start(M0), limits=LIMITS, total=TOTAL, prior=a_prior())
    assert taught is not None
    assert taught.time_left(a_config(2), 0.0) == pytest.approx(truly_left(a_config(2), 0.0), rel=0.15)


def test_the_agents_choice_of_batch_is_asked_as_the_noise_grows() -> None:
    config = a_config(4, atomic=16)
    run, _, work = trained(start(M0), config, TOTAL / 2)
    expected = expect(run, limits=LIMITS, total=TOTAL)
    assert expected is not None
    asked: list[float] = []

    def choose(noise: float) -> tuple[int, int]:
        asked.append(noise)
        return 64, 0

    larger = expected.time_left(config, work, choose)
    assert larger < expected.time_left(config, work)
    assert asked == sorted(asked)
    assert asked[-1] > 1.05 * asked[0]


def test_reports_make_it_surer() -> None:
    few, _, _ = trained(start(M0), a_config(1), 0.05 * TOTAL)
    many, _, _ = trained(start(M0), a_config(1), 0.5 * TOTAL)
    first, later = (expect(run, limits=LIMITS, total=TOTAL) for run in (few, many))
    assert first is not None
    assert later is not None
    assert later.deviation < first.deviation


@pytest.mark.parametrize("total", [0.0, -1.0, math.nan, math.inf])
def test_work_that_is_no_amount_is_refused(total: float) -> None:
    with pytest.raises(InputError):
        expect(start(M0), limits=LIMITS, total=total)


def test_gradients_that_were_never_told_leave_the_batch_size_alone() -> None:
    run = observe(start(M0), 0.0, Measurement(config=a_config(), step_s=0.1, work=0.0))
    run = observe(run, 100.0, Measurement(config=a_config(), step_s=0.1, work=64_000.0))
    expected = expect(run, limits=LIMITS, total=TOTAL)
    assert expected is not None
    assert expected.time_left(a_config(), 64_000.0) == pytest.approx(900.0, rel=0.1)


# -- sharing --------------------------------------------------------------------------------------------


def test_a_job_around_its_fair_share_stays_as_it_is() -> None:
    assert sharing(3600.0, 0.1, 4, 4.4)[0] == 3600.0


def test_a_job_with_few_gpus_gets_more_and_one_with_many_loses_some() -> None:
    assert sharing(3600.0, 0.1, 1, 8)[0] < 2400.0
    assert sharing(3600.0, 0.1, 16, 4)[0] > 5400.0


def test_the_next_minute_changes_nothing() -> None:
    assert sharing(60.0, 0.1, 1, 8)[0] == pytest.approx(60.0, rel=0.03)


seconds = st.floats(1, 1e6)
gpus = st.floats(0.1, 1000)


@given(seconds, st.floats(0, 2), gpus, gpus)
def test_sharing_never_makes_surer_and_never_goes_beyond_the_fair_share(
    left_s: float, deviation: float, mine: float, fair: float
) -> None:
    drifted, wide = sharing(left_s, deviation, mine, fair)
    assert wide >= deviation
    low, high = sorted((left_s, left_s * mine / fair))
    assert low * (1 - 1e-9) <= drifted <= high * (1 + 1e-9)


@pytest.mark.parametrize(
    ("left_s", "mine", "fair"), [(-1, 1, 1), (math.nan, 1, 1), (10, 0, 1), (10, 1, 0), (10, 1, math.nan)]
)
def test_sharing_refuses_nonsense(left_s: float, mine: float, fair: float) -> None:
    with pytest.raises(InputError):
        sharing(left_s, 0.1, mine, fair)

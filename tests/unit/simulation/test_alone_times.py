from __future__ import annotations

import msgspec
import pytest

from coadapt.model import JobSpec, parse_cluster
from coadapt.simulation.case import AloneTimes
from coadapt.simulation.truth._base import solo_time_s
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for
from tests.unit.cli.traces import a_trace_job


def _alone(*, chooses_size: bool) -> AloneTimes:
    return AloneTimes(shipped_profiles(), parse_cluster("4x4"), chooses_size=chooses_size, restart_s=30.0)


def _a_spec(mode: str, replicas: int = 4, batch: int = 1024) -> JobSpec:
    spec = spec_for("a", shipped_profiles()["cifar10"], "cifar10", replicas=replicas, batch=batch)
    assert spec.batch is not None
    return msgspec.structs.replace(spec, batch=msgspec.structs.replace(spec.batch, mode=mode))


def test_rigid_job_takes_its_duration_and_one_start() -> None:
    alone = _alone(chooses_size=False)
    assert alone.alone_s(a_trace_job("a", 4).spec, 4) == 130.0
    assert alone.alone_s(a_trace_job("a", 4).spec, 2) == 230.0


def test_job_whose_time_nobody_knows_has_none() -> None:
    spec = msgspec.structs.replace(a_trace_job("a").spec, duration_s=None)
    assert _alone(chooses_size=False).alone_s(spec, 1) is None


def test_fixed_job_takes_its_solo_time() -> None:
    expected = solo_time_s(shipped_profiles()["cifar10"], 4, 1024)
    assert _alone(chooses_size=False).alone_s(_a_spec("fixed"), 4) == pytest.approx(expected + 30, rel=1e-9)


def test_job_of_a_policy_that_keeps_sizes_uses_no_more_than_it_asked_for() -> None:
    spec = _a_spec("fixed", replicas=2)
    assert _alone(chooses_size=False).alone_s(spec, 2) == _alone(chooses_size=False).alone_s(spec, 16)


def test_adaptive_job_is_never_slower_than_a_fixed_one() -> None:
    for gpus in (1, 2, 4, 8):
        fixed = _alone(chooses_size=True).alone_s(_a_spec("fixed"), gpus)
        adaptive = _alone(chooses_size=True).alone_s(_a_spec("adaptive"), gpus)
        assert fixed is not None
        assert adaptive is not None
        assert adaptive <= fixed * 1.01


@pytest.mark.parametrize("mode", ["fixed", "adaptive"])
def test_more_gpus_never_make_a_job_slower_alone(mode: str) -> None:
    alone = _alone(chooses_size=True)
    times = [alone.alone_s(_a_spec(mode, batch=128), gpus) or 0.0 for gpus in range(1, 17)]
    assert times == sorted(times, reverse=True)


def test_fixed_batch_is_not_spread_thinner_than_its_limit() -> None:
    spec = _a_spec("fixed", replicas=1, batch=128)
    assert spec.batch is not None
    most = 128 // spec.batch.per_gpu_min
    alone = _alone(chooses_size=True)
    assert most < 16
    assert alone.alone_s(spec, most) == alone.alone_s(spec, 16)


def test_fewer_epochs_take_less_time_alone() -> None:
    whole, half = _a_spec("fixed"), msgspec.structs.replace(_a_spec("fixed"), epochs=50.0)
    alone = _alone(chooses_size=False)
    assert (alone.alone_s(half, 4) or 0.0) < 0.7 * (alone.alone_s(whole, 4) or 0.0)

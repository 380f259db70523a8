"""Many curves asked at once: each answers as if it were alone, and only once."""

from __future__ import annotations

import numpy as np
import pytest

from coadapt.configure import FittedCurve, RigidCurve, goodput_table
from coadapt.configure.goodput_table import goodput_rows
from coadapt.model import Batch, JobSpec, Role
from coadapt.prediction.step_time.pollux import StepTimeParams
from tests.unit.configure.test_many import LIMITS
from tests.unit.prediction.pollux_tables import a_table, exact_rows

NODES, REPLICAS = np.array([1, 1, 1, 2, 16]), np.array([1, 2, 4, 8, 64])
KNOWN = StepTimeParams(
    alpha_c=0.05, beta_c=0.004, alpha_n=0.1, beta_n=0.01, alpha_r=0.03, beta_r=0.003, gamma=1.6
)


def a_curve(
    batch: Batch = LIMITS, *, step_time_model: str = "node-aware", measured: bool = True
) -> FittedCurve:
    shapes = [(1, 1, 64), (1, 2, 128), (2, 8, 64)] if measured else []
    return FittedCurve(
        spec=JobSpec(name="j", batch=batch, epochs=10, data_size=50_000),
        table=a_table(exact_rows(KNOWN, shapes)),
        grad_sqr=1.0,
        grad_var=20.0,
        grad_batch=256,
        step_time_model=step_time_model,
    )


def some_curves() -> list[object]:
    rigid = JobSpec(name="r", roles=(Role(name="worker", min=4, max=4),), duration_s=60)
    return [
        a_curve(),
        a_curve(Batch(initial=128, max=600, per_gpu_min=128, per_gpu_max=600)),
        a_curve(Batch(initial=512, max=512, per_gpu_min=8, per_gpu_max=64, mode="fixed")),
        a_curve(measured=False),
        a_curve(step_time_model="pollux"),
        RigidCurve(spec=rigid),
    ]


def test_each_curve_answers_as_if_it_were_alone() -> None:
    together = goodput_rows(some_curves(), NODES, REPLICAS)  # type: ignore[arg-type]
    alone = [curve.goodput(NODES, REPLICAS) for curve in some_curves()]  # type: ignore[attr-defined]
    np.testing.assert_allclose(together, alone, rtol=5e-3)
    assert together[1].tolist()[3:] == [0.0, 0.0]  # 8 replicas of at least 128 are beyond 600


def test_a_question_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(questions, *places):  # type: ignore[no-untyped-def]
        asked.append(len(questions))
        return real(questions, *places)

    real = goodput_table.speeds
    monkeypatch.setattr(goodput_table, "speeds", counted)
    curves = [a_curve() for _ in range(5)]
    first = goodput_rows(curves, NODES, REPLICAS)
    curves[2] = a_curve()  # one was measured again
    second = goodput_rows(curves, NODES, REPLICAS)
    assert asked == [5, 1]
    np.testing.assert_array_equal(first, second)
    # the curve itself now says the same
    np.testing.assert_array_equal(curves[0].goodput(NODES, REPLICAS), first[0])


def test_places_that_cannot_be_are_worth_nothing() -> None:
    found = goodput_rows([a_curve()], np.array([0, 3, 1]), np.array([0, 2, 2]))
    assert found[0].tolist()[:2] == [0.0, 0.0]
    assert found[0, 2] > 0
    assert goodput_rows([a_curve()], np.array([3]), np.array([2])).tolist() == [[0.0]]


def test_quickening_is_the_same_from_kept_speeds() -> None:
    asked, alone = a_curve(), a_curve()
    goodput_rows([asked], NODES, REPLICAS)
    assert asked.quickening(1, 4) == pytest.approx(alone.quickening(1, 4), rel=0.02)
    assert asked.quickening(1, 4) > 1

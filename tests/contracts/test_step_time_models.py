"""Every registered step-time model, by the published suite."""

from __future__ import annotations

import numpy as np
import pytest

from coadapt.plugins import STEP_TIME_MODELS
from coadapt.prediction.step_time._base import StepTimeModel
from coadapt.prediction.step_time.pollux import PolluxModel, StepTimeParams
from coadapt.testing.step_time_models import StepTimeModelConformance


def suite(name: str) -> type[StepTimeModelConformance]:
    def make(self: StepTimeModelConformance) -> StepTimeModel:
        made: StepTimeModel = STEP_TIME_MODELS.make(name)
        return made

    return type(f"Test_{name}".replace("-", "_"), (StepTimeModelConformance,), {"make": make})


for _name in STEP_TIME_MODELS:
    globals()[f"Test_{_name}".replace("-", "_")] = suite(_name)


class ByCompany(PolluxModel):
    """Its answers depend on how many jobs are fitted together."""

    def fit_points(self, jobs, priors):  # type: ignore[no-untyped-def]
        return [found.projected(len(jobs), 0.0) for found in super().fit_points(jobs, priors)]


class Stuck(StepTimeParams, frozen=True):
    def step_time(self, nodes, replicas, atomic, accumulation=0):  # type: ignore[no-untyped-def]
        return np.ones(np.broadcast_shapes(*map(np.shape, (nodes, replicas, atomic, accumulation))))


class Constant(PolluxModel):
    """A second for every step."""

    def fit_points(self, jobs, priors):  # type: ignore[no-untyped-def]
        return [Stuck(alpha_c=1, beta_c=0, alpha_n=0, beta_n=0, alpha_r=0, beta_r=0, gamma=1) for _ in jobs]


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (ByCompany, "test_many_together_are_each_alone_to_the_last_bit"),
        (Constant, "test_measured_places_are_near_what_was_measured"),
        (Constant, "test_projection_divides_all_times_and_widens"),
    ],
)
def test_suite_finds_fault_with_a_wrong_model(wrong: type[StepTimeModel], test: str) -> None:
    class Suite(StepTimeModelConformance):
        def make(self) -> StepTimeModel:
            return wrong()

    with pytest.raises(AssertionError):
        getattr(Suite(), test)()

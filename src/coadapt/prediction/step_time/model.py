"""Step-time models by name, and fits by the one that is named: what everything outside the family calls.

``"node-aware"`` is the product's; ``"pollux"`` is Pollux' own, for policies that are reproduced as published. Others
come from files beside these or from entry points (``plugins.STEP_TIME_MODELS``).
"""

from __future__ import annotations

from collections.abc import Sequence

from coadapt.plugins import STEP_TIME_MODELS
from coadapt.prediction.step_time._base import DEFAULT_MODEL, FittedStepTime, StepTimeModel
from coadapt.prediction.step_time.step_table import StepTimeTable

#: One of each kind: agents and scheduler share its fits.
_models: dict[type, StepTimeModel] = {}


def step_time_model(which: str | StepTimeModel = DEFAULT_MODEL) -> StepTimeModel:
    """The model of a name, always the same object; an instance is returned as it is."""
    if not isinstance(which, str):
        return which
    cls: type[StepTimeModel] = STEP_TIME_MODELS.load(which)
    if cls not in _models:
        _models[cls] = cls()
    return _models[cls]


def fit(
    table: StepTimeTable,
    prior: FittedStepTime | None = None,
    *,
    gpu_type: str = "gpu",
    model: str | StepTimeModel = DEFAULT_MODEL,
) -> FittedStepTime | None:
    """Fit the step times of one job on one GPU type; None if nothing was measured and there is no prior. Memoised.

    Args:
        table: Measurements of the job.
        prior: The answer while nothing was measured; some models also lean on it beside measurements.
        gpu_type: The GPU type.
        model: A step-time model, or its name.
    """
    return step_time_model(model).fit(table, prior, gpu_type=gpu_type)


def fit_many(
    tables: Sequence[StepTimeTable],
    priors: Sequence[FittedStepTime | None] | None = None,
    *,
    gpu_type: str = "gpu",
    model: str | StepTimeModel = DEFAULT_MODEL,
) -> list[FittedStepTime | None]:
    """``fit`` of many jobs at once.

    Args:
        tables: Measurements of each job.
        priors: Prior of each job.
        gpu_type: The GPU type.
        model: A step-time model, or its name.
    """
    return step_time_model(model).fit_many(tables, priors, gpu_type=gpu_type)


def fit_count() -> int:
    """Number of fits that this process has computed, without those answered from a memo."""
    return sum(model.fits for model in _models.values())

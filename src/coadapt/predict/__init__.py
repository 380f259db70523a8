"""What a job will do: how long, how far, how sure. Each answer is an ``Estimate`` or a distribution, never a bare number.

Each predictor is a module of pure functions, ``observe(table, measurement)``, ``fit(table, prior)``,
``predict(params, x)``, and keeps no state:

- before anything has run: ``layers`` (from the model itself), ``communication``, ``hardware``, ``history`` (the pool
  of past jobs);
- from a job's measurements: ``step_time``, ``parameter_server``, ``noise``, ``efficiency``, ``overheads``;
- how far it has to go: ``remaining`` (all evidence blended), ``convergence``, ``learning_curve``, ``gittins``;
- while it runs: ``pace``, ``eta``, and by its log ``training_log`` and ``log_progress``; where its GPUs change ``adaptive_run``
  and ``eta_adaptive``; how ETAs turned out: ``outcomes``;
- from a user's own samples: ``samples``, ``epoch_time``, ``final_metric``, ``weighted_isotonic`` (as published),
  ``selection`` (the better one, named), ``work_epochs`` (what larger batches cost in passes).

Modules and names are looked up when they are first used: importing ``coadapt.predict`` imports no numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coadapt.predict import (
        adaptive_run,
        communication,
        convergence,
        efficiency,
        epoch_time,
        eta,
        eta_adaptive,
        final_metric,
        gittins,
        hardware,
        history,
        layers,
        learning_curve,
        log_progress,
        noise,
        outcomes,
        overheads,
        pace,
        parameter_server,
        remaining,
        samples,
        selection,
        step_time,
        training_log,
        weighted_isotonic,
        work_epochs,
    )
    from coadapt.predict._base import COVERAGE, Estimate, Fit, Observe, Predict
    from coadapt.predict.epoch_time import EpochQuery
    from coadapt.predict.final_metric import MetricQuery
    from coadapt.predict.gittins import GittinsIndex
    from coadapt.predict.hardware import Gpu, find_gpu
    from coadapt.predict.history import PastJob, Pool
    from coadapt.predict.remaining import RemainingEvidence, RemainingWork
    from coadapt.predict.samples import EpochSample, MetricSample
    from coadapt.predict.step_time import AwareParams, StepTimeParams, StepTimeTable

#: Names that are not modules, and where each lives.
_HOMES = {
    "COVERAGE": "_base",
    "AwareParams": "step_time",
    "EpochQuery": "epoch_time",
    "EpochSample": "samples",
    "Estimate": "_base",
    "Fit": "_base",
    "GittinsIndex": "gittins",
    "Gpu": "hardware",
    "MetricQuery": "final_metric",
    "MetricSample": "samples",
    "Observe": "_base",
    "PastJob": "history",
    "Pool": "history",
    "Predict": "_base",
    "RemainingEvidence": "remaining",
    "RemainingWork": "remaining",
    "StepTimeParams": "step_time",
    "StepTimeTable": "step_time",
    "find_gpu": "hardware",
}

__all__ = [
    "COVERAGE",
    "AwareParams",
    "EpochQuery",
    "EpochSample",
    "Estimate",
    "Fit",
    "GittinsIndex",
    "Gpu",
    "MetricQuery",
    "MetricSample",
    "Observe",
    "PastJob",
    "Pool",
    "Predict",
    "RemainingEvidence",
    "RemainingWork",
    "StepTimeParams",
    "StepTimeTable",
    "adaptive_run",
    "communication",
    "convergence",
    "efficiency",
    "epoch_time",
    "eta",
    "eta_adaptive",
    "final_metric",
    "find_gpu",
    "gittins",
    "hardware",
    "history",
    "layers",
    "learning_curve",
    "log_progress",
    "noise",
    "outcomes",
    "overheads",
    "pace",
    "parameter_server",
    "remaining",
    "samples",
    "selection",
    "step_time",
    "training_log",
    "weighted_isotonic",
    "work_epochs",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"coadapt.predict.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"coadapt.predict.{name}")
    raise AttributeError(f"module 'coadapt.predict' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

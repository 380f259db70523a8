"""Predictions about a job: its time, its progress and their uncertainty, as an ``Interval`` or a distribution.

Each predictor is a module of pure functions, ``observe(table, measurement)``, ``fit(table, prior)``,
``predict(params, x)``, and keeps no state:

- before anything has run: ``layers`` (from the model itself), ``communication``, ``remaining.past_jobs`` (the pool);
- from a job's measurements: ``step_time``, ``parameter_server``, ``gradient_noise``;
- remaining work: ``remaining.work`` (all evidence blended), ``remaining.learning_curve``;
- while it runs: ``remaining.eta_estimate``, ``remaining.adaptive_run``, and by its log ``training_log``;
- from a user's own samples: ``samples``.

The package exports the inputs and results of these predictors: ``COVERAGE`` of their intervals; the protocols ``Fit``,
``Observe`` and ``Predict``; tables and parameters of step times; past jobs (``Pool``, ``PastJob``); remaining work;
samples and queries.

Names are looked up when they are first used: importing ``coadapt.prediction`` imports no numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.prediction._base import COVERAGE, Fit, Observe, Predict
    from coadapt.prediction.remaining.past_jobs import PastJob, Pool
    from coadapt.prediction.remaining.work import RemainingEvidence, RemainingWork
    from coadapt.prediction.samples.epoch_time import EpochQuery
    from coadapt.prediction.samples.final_metric import MetricQuery
    from coadapt.prediction.samples.sample_table import EpochSample, MetricSample
    from coadapt.prediction.step_time.node_aware import AwareParams
    from coadapt.prediction.step_time.pollux import StepTimeParams
    from coadapt.prediction.step_time.step_table import StepTimeTable
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "_base": ("COVERAGE", "Fit", "Observe", "Predict"),
            "remaining.past_jobs": ("PastJob", "Pool"),
            "remaining.work": ("RemainingEvidence", "RemainingWork"),
            "samples.epoch_time": ("EpochQuery",),
            "samples.final_metric": ("MetricQuery",),
            "samples.sample_table": ("EpochSample", "MetricSample"),
            "step_time.node_aware": ("AwareParams",),
            "step_time.pollux": ("StepTimeParams",),
            "step_time.step_table": ("StepTimeTable",),
        },
    )

__all__ = [
    "COVERAGE",
    "AwareParams",
    "EpochQuery",
    "EpochSample",
    "Fit",
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
]

"""What a job will do: step time, statistical efficiency, convergence, each with its uncertainty.

Each predictor is a module: ``predict.step_time.observe(table, measurement)``, ``.fit(table)``, ``.predict(params, x)``.
"""

from coadapt.predict import convergence, efficiency, gittins, noise, overheads, parameter_server, step_time
from coadapt.predict._base import COVERAGE, Estimate, Fit, Observe, Predict
from coadapt.predict.gittins import GittinsIndex
from coadapt.predict.step_time import AwareParams, StepTimeParams, StepTimeTable

__all__ = [
    "COVERAGE",
    "AwareParams",
    "Estimate",
    "Fit",
    "GittinsIndex",
    "Observe",
    "Predict",
    "StepTimeParams",
    "StepTimeTable",
    "convergence",
    "efficiency",
    "gittins",
    "noise",
    "overheads",
    "parameter_server",
    "step_time",
]

"""Configuration of a job: the best batch size for given GPUs, and with it the job's scaling curve.

``configure.best_batch`` is the module; its functions are what agents call.
"""

from coadapt.configure.best_batch import BatchChoice, SpeedModel
from coadapt.configure.curve import Curve, FittedCurve, RigidCurve, ServerCurve
from coadapt.configure.rate_curve import RateCurve

__all__ = [
    "BatchChoice",
    "Curve",
    "FittedCurve",
    "RateCurve",
    "RigidCurve",
    "ServerCurve",
    "SpeedModel",
    "best_batch",
]

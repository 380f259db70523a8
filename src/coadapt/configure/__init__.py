"""What a job should do: the best batch size for given GPUs, and with it the job's scaling curve."""

from coadapt.configure._base import BatchChoice, Curve, SpeedModel
from coadapt.configure.best_batch import BatchChoices, best_batch, best_batches, first_batch, split_batch
from coadapt.configure.curve import FittedCurve, RigidCurve

__all__ = [
    "BatchChoice",
    "BatchChoices",
    "Curve",
    "FittedCurve",
    "RigidCurve",
    "SpeedModel",
    "best_batch",
    "best_batches",
    "first_batch",
    "split_batch",
]

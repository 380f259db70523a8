"""What a job should do: the best batch size for given GPUs, and with it the job's scaling curve.

``configure.best_batch`` is the module; its functions are what agents call.
"""

from coadapt.configure import best_batch
from coadapt.configure._base import BatchChoice, Curve, SpeedModel
from coadapt.configure.curve import FittedCurve, RigidCurve
from coadapt.configure.served import ServerCurve

__all__ = ["BatchChoice", "Curve", "FittedCurve", "RigidCurve", "ServerCurve", "SpeedModel", "best_batch"]

"""The state machine: ``handle(record)`` -> decisions and actions; no clock, no I/O."""

from coadapt.scheduler.curve_source import CurveSource, FittedCurves
from coadapt.scheduler.scheduler import Scheduler
from coadapt.scheduler.state.state import SchedulerState
from coadapt.scheduler.state.transitions import TRANSITIONS

__all__ = ["TRANSITIONS", "CurveSource", "FittedCurves", "Scheduler", "SchedulerState"]

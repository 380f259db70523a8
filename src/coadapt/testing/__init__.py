"""Published conformance suites: subclass one in your own tests, implement how your plug-in is made, run pytest.

class TestMyLog(StoreConformance):
    def open(self, directory: Path) -> EventLog:
        return MyLog(directory / "log")

Batch rules and learning-rate rules live in the training process: their suites are in ``coadapt.torch.rule_conformance``.
"""

from coadapt.testing.executors import Bench, ExecutorConformance, LiveBench, LiveExecutorConformance
from coadapt.testing.log_formats import LogFormatConformance
from coadapt.testing.placers import PlacerConformance
from coadapt.testing.planners import PlannerConformance
from coadapt.testing.policies import Inspector, PolicyConformance
from coadapt.testing.step_time_models import StepTimeModelConformance
from coadapt.testing.stores import EVERY_EVENT, InboxConformance, LeaseConformance, StoreConformance
from coadapt.testing.trace_readers import TraceReaderConformance

__all__ = [
    "EVERY_EVENT",
    "Bench",
    "ExecutorConformance",
    "InboxConformance",
    "Inspector",
    "LeaseConformance",
    "LiveBench",
    "LiveExecutorConformance",
    "LogFormatConformance",
    "PlacerConformance",
    "PlannerConformance",
    "PolicyConformance",
    "StepTimeModelConformance",
    "StoreConformance",
    "TraceReaderConformance",
]

"""Published conformance suites: subclass one in your own tests, say how your plug-in is made, run pytest.

class TestMyLog(StoreConformance):
    def open(self, directory: Path) -> EventLog:
        return MyLog(directory / "log")
"""

from coadapt.testing.executors import Bench, ExecutorConformance
from coadapt.testing.leases import LeaseConformance
from coadapt.testing.planners import PlannerConformance
from coadapt.testing.policies import Inspector, PolicyConformance
from coadapt.testing.samples import EVERY_EVENT
from coadapt.testing.stores import InboxConformance, StoreConformance

__all__ = [
    "EVERY_EVENT",
    "Bench",
    "ExecutorConformance",
    "InboxConformance",
    "Inspector",
    "LeaseConformance",
    "PlannerConformance",
    "PolicyConformance",
    "StoreConformance",
]

"""Every registered policy, by the published suite."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

from coadapt import policies
from coadapt.model import Allocation, JobSubmitted, NodeJoined, Record, workers
from coadapt.model.snapshot import Snapshot
from coadapt.policies import Curves, FifoPolicy, Memory, Policy, Proposal, Rng
from coadapt.scheduler import SchedulerState
from coadapt.testing.policies import Inspector, PolicyConformance
from tests.builders import GPUS_ONLY, a_cluster, a_job, every_policy

POLICIES = every_policy()


def suite(name: str) -> type[PolicyConformance]:
    def make(self: PolicyConformance) -> Policy:
        return POLICIES[name]()

    fields = {"make": make, "knows_roles": name not in GPUS_ONLY, "same_without_warm_start": name != "pollux"}
    return type(f"Test_{name}".replace("-", "_"), (PolicyConformance,), fields)


for _name in POLICIES:
    globals()[f"Test_{_name}".replace("-", "_")] = suite(_name)


def policy_classes() -> set[type]:
    """Every class that decides, of every module of the package, whether or not the package exports it."""
    found: set[type] = set()
    for each in pkgutil.walk_packages(policies.__path__, f"{policies.__name__}."):
        module = importlib.import_module(each.name)
        found |= {
            thing
            for thing in vars(module).values()
            if inspect.isclass(thing)
            and thing.__module__ == module.__name__
            and callable(getattr(thing, "decide", None))
            and not inspect.isabstract(thing)
            and not getattr(thing, "_is_protocol", False)
        }
    return found


def test_every_policy_of_the_package_is_tested() -> None:
    assert policy_classes() == {type(make()) for make in POLICIES.values()}


def test_every_policy_of_the_package_is_exported() -> None:
    for cls in policy_classes():
        assert getattr(policies, cls.__name__) is cls


class Wrong:
    """A policy that returns what it is told to."""

    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        return self.proposal


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(allocations={"nobody": workers(1)}),
        Proposal(allocations={"a": workers(3)}),
        Proposal(allocations={"a": Allocation()}),
        Proposal(allocations={"b": workers(8)}),
        Proposal(memory={"key": {1, 2}}),
        Proposal(memory={"key": (1, 2)}),
        Proposal(wake_at=5.0),
    ],
)
def test_suite_finds_fault_with_a_wrong_proposal(proposal: Proposal) -> None:
    state = SchedulerState()
    events = [
        NodeJoined(node=a_cluster("1x4").nodes[0]),
        JobSubmitted(job="a", spec=a_job(2)),
        JobSubmitted(job="b", spec=a_job(8)),
    ]
    for seq, event in enumerate(events):
        state.apply(Record(seq=seq, at=5.0, event=event))
    with pytest.raises((AssertionError, TypeError)):
        Inspector(Wrong(proposal)).decide(state, {}, Memory(), lambda: None)  # type: ignore[arg-type,return-value]
    assert Inspector(FifoPolicy()).decide(state, {}, Memory(), lambda: None).allocations  # type: ignore[arg-type,return-value]

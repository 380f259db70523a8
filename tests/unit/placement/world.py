"""A scheduler's state that is told what happens, for tests that look at one decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from coadapt.model import (
    SERVER,
    ActionsIssued,
    AnyEvent,
    Cluster,
    DecisionMade,
    JobSpec,
    JobStarted,
    JobSubmitted,
    NodeJoined,
    Placement,
    Record,
    Resources,
    Role,
    Slot,
    StartJob,
    parse_cluster,
)
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.cycle import check
from coadapt.scheduler.state.node_state import Needs

Where = dict[str, int]


def a_spec(per: int = 1, cpus: float = 0.0, **fields: Any) -> JobSpec:
    demand = Resources(gpus=per, cpus=cpus)
    return JobSpec(**{"name": "job", "roles": (Role(max=64, demand=demand),), **fields})


class World:
    """A scheduler's state that is told what happens; jobs with a target run."""

    def __init__(self, cluster: Cluster | str, **links: float) -> None:
        nodes = (parse_cluster(cluster) if isinstance(cluster, str) else cluster).nodes
        self.state = SchedulerState()
        self.actions = 0
        for node in nodes:
            link = links.get(node.name, node.link_bytes_per_s)
            self.tell(NodeJoined(node=msgspec.structs.replace(node, link_bytes_per_s=link)))

    def tell(self, event: AnyEvent, at: float | None = None) -> None:
        now = self.state.now if at is None else at
        self.state.apply(Record(seq=self.state.seq + 1, at=now, event=event))

    def submit(self, name: str, spec: JobSpec | None = None) -> None:
        self.tell(JobSubmitted(job=name, spec=a_spec() if spec is None else spec))

    def decide(self, targets: Mapping[str, Placement]) -> None:
        """As the scheduler would: checked, recorded, and carried out at once for jobs that start."""
        targets = {name: t for name, t in targets.items() if t != self.state.jobs[name].target}
        check(self.state, targets)
        self.tell(DecisionMade(decision=self.state.decisions + 1, targets=dict(targets)))
        self.state.validate()

    def run(self, name: str, where: Where, spec: JobSpec | None = None, servers: Where | None = None) -> None:
        """A job that runs there."""
        self.submit(name, spec)
        types = {n: view.node.gpu_type for n, view in self.state.nodes.items()}
        slots = [Slot(node=n, replicas=count, gpu_type=types[n]) for n, count in where.items()]
        for n, count in (servers or {}).items():
            slots.append(Slot(node=n, replicas=count, gpu_type=types[n], role=SERVER))
        self.decide({name: Placement(slots=tuple(slots))})
        self.start(name)

    def start(self, name: str, took_s: float = 0.0) -> None:
        """A job that has a place starts there, if its GPUs are free and it never has before."""
        job = self.state.jobs[name]
        needs = Needs()
        needs.add(job.target.slots, job.spec)
        free = all(
            self.state.all_nodes[n].has_free(gpus, needs.other.get(n, {})) for n, gpus in needs.gpus.items()
        )
        if job.target and free and not job.attempt:
            self.actions += 1
            start = StartJob(id=self.actions, job=name, attempt=1, placement=job.target)
            self.tell(ActionsIssued(decision=self.state.decisions, actions=(start,)))
            self.tell(JobStarted(job=name, attempt=1), self.state.now + took_s)

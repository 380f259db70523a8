"""The invariants that are never traded away, checked on the log alone.

Written apart from the scheduler's state, from the meaning of the events, so that a mistake there is not repeated here:
what each attempt holds follows from actions and reports, and from nothing else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    CancelRequested,
    DecisionMade,
    JobFinished,
    JobResized,
    JobSpec,
    JobStopped,
    JobSubmitted,
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Placement,
    Record,
    ReplicasReleased,
    ResizeJob,
    SpecChanged,
    StartJob,
    StopJob,
)

Key = tuple[str, str]


@dataclass
class Life:
    """One job, as the log tells it."""

    spec: JobSpec
    attempt: int = 0
    #: Replicas by (node, role).
    holds: Counter[Key] = field(default_factory=Counter)
    placement: Placement = NOWHERE
    resizing_to: Placement | None = None
    stopping: bool = False
    target: Placement = NOWHERE
    failures: int = 0
    cancelled: bool = False
    outcome: str | None = None

    @property
    def running(self) -> bool:
        return bool(self.holds)


def counted(placement: Placement) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for slot in placement.slots:
        assert slot.replicas > 0
        assert (slot.node, slot.role) not in found, "two slots of one role on one node"
        found[slot.node, slot.role] = slot.replicas
    return found


class Ledger:
    """Takes records one by one; any broken promise is an AssertionError."""

    def __init__(self) -> None:
        self.seq, self.at = -1, 0.0
        self.nodes: dict[str, Node] = {}
        self.lost: set[str] = set()
        self.drained: set[str] = set()
        self.jobs: dict[str, Life] = {}
        self.ends: Counter[tuple[str, int]] = Counter()
        self.action = 0

    def take(self, record: Record) -> None:
        assert record.seq == self.seq + 1, "a hole in the log"
        assert record.at >= self.at, "time went backwards"
        self.seq, self.at = record.seq, record.at
        handler = getattr(self, "_" + type(record.event).__name__, None)
        if handler is not None:
            handler(record.event)
        self._check_capacity()

    # -- facts ---------------------------------------------------------------------------------------

    def _NodeJoined(self, event: NodeJoined) -> None:  # noqa: N802
        self.nodes[event.node.name] = event.node
        self.lost.discard(event.node.name)
        self.drained.discard(event.node.name)

    def _NodeLost(self, event: NodeLost) -> None:  # noqa: N802
        self.lost.add(event.node)
        self._void(event.node, evenly=True)

    def _NodeDrained(self, event: NodeDrained) -> None:  # noqa: N802
        self.drained.add(event.node)
        self._void(event.node, evenly=False)

    def _void(self, node: str, *, evenly: bool) -> None:
        """Promises on a node that went away are void (a job that may not be preempted stays when drained)."""
        for life in self.jobs.values():
            touched = any(slot.node == node for slot in life.target.slots)
            gone = evenly and any(held == node for held, _ in life.holds)
            if (touched or gone) and (evenly or life.spec.preemptible or not life.running):
                life.target = NOWHERE

    def _JobSubmitted(self, event: JobSubmitted) -> None:  # noqa: N802
        self.jobs.setdefault(event.job, Life(event.spec))

    def _CancelRequested(self, event: CancelRequested) -> None:  # noqa: N802
        life = self.jobs.get(event.job)
        if life is not None and life.outcome is None:
            life.cancelled, life.target = True, Placement()
            if not life.running:
                life.outcome = "cancelled"

    def _SpecChanged(self, event: SpecChanged) -> None:  # noqa: N802
        life = self.jobs.get(event.job)
        if life is not None and life.outcome is None:
            life.spec = event.spec

    def _ReplicasReleased(self, event: ReplicasReleased) -> None:  # noqa: N802
        life = self._current(event.job, event.attempt)
        if life is not None and not life.stopping and life.resizing_to == event.placement:
            life.holds = counted(event.placement)

    def _JobResized(self, event: JobResized) -> None:  # noqa: N802
        life = self._current(event.job, event.attempt)
        if life is not None and not life.stopping and life.resizing_to == event.placement:
            life.holds, life.placement = counted(event.placement), event.placement
            life.resizing_to = None

    def _JobStopped(self, event: JobStopped) -> None:  # noqa: N802
        life = self._ended(event.job, event.attempt)
        if life.cancelled:
            life.outcome = "cancelled"

    def _JobFinished(self, event: JobFinished) -> None:  # noqa: N802
        life = self._ended(event.job, event.attempt)
        if event.outcome == "failed" and life.cancelled:
            life.outcome = "cancelled"
        elif event.outcome == "failed" and life.failures < life.spec.retries:
            life.failures += 1
        else:
            life.outcome = event.outcome

    def _ended(self, job: str, attempt: int) -> Life:
        life = self.jobs[job]
        assert life.attempt == attempt, "an attempt ended that is not the newest"
        assert life.running, "an attempt ended twice"
        self.ends[job, attempt] += 1
        asked = life.stopping
        life.holds, life.placement, life.resizing_to, life.stopping = Counter(), Placement(), None, False
        if not asked:
            life.target = NOWHERE
        return life

    def _current(self, job: str, attempt: int) -> Life | None:
        life = self.jobs[job]
        return life if life.attempt == attempt and life.running else None

    # -- decisions -----------------------------------------------------------------------------------

    def _DecisionMade(self, event: DecisionMade) -> None:  # noqa: N802
        for name, target in event.targets.items():
            life = self.jobs[name]
            assert life.outcome is None, f"{name} got a target after its end"
            assert not life.cancelled, f"{name} got a target after its cancellation"
            if life.running and life.target:
                assert life.spec.preemptible, f"{name} may not be moved"
            for role in life.spec.roles if target else ():
                assert role.min <= target.count(role.name) <= role.max, f"{name} got {target}"
            for slot in target.slots:
                assert slot.node not in self.lost | self.drained, f"{name} was promised {slot}"
            life.target = target
        self._within("promised", {name: counted(life.target) for name, life in self.jobs.items()})

    def _ActionsIssued(self, event: ActionsIssued) -> None:  # noqa: N802
        assert event.actions, "an empty list of actions"
        for action in event.actions:
            assert action.id == self.action + 1, "action ids have a hole"
            self.action = action.id
            life = self.jobs[action.job]
            assert life.outcome is None, f"{action} after the job's end"
            if isinstance(action, StartJob):
                self._start(life, action)
            else:
                assert life.running, f"{action} for an attempt that has ended"
                assert life.attempt == action.attempt, f"{action} for an older attempt"
                assert not life.stopping, f"{action} for an attempt that is being stopped"
                self._change(life, action)

    def _start(self, life: Life, action: StartJob) -> None:
        assert not life.running, f"{action}: it runs already"
        assert not life.cancelled, f"{action}: it was cancelled"
        assert action.attempt == life.attempt + 1, f"{action} after attempt {life.attempt}"
        assert action.placement == life.target, f"{action} is not what was decided"
        for slot in action.placement.slots:
            assert slot.node not in self.lost | self.drained, f"{action} on a node that takes nobody"
        for name in life.spec.after:
            assert self.jobs[name].outcome == "succeeded", f"{action} before {name} has succeeded"
        life.attempt, life.holds, life.placement = action.attempt, counted(action.placement), action.placement

    def _change(self, life: Life, action: ResizeJob | StopJob) -> None:
        if isinstance(action, StopJob):
            assert life.spec.preemptible or action.why in ("cancel", "node-lost"), (
                f"{action}: not preemptible"
            )
            life.stopping = True
            return
        assert action.before == life.placement, f"{action}: it is on {life.placement}"
        assert action.placement == life.target, f"{action} is not what was decided"
        assert life.resizing_to is None, f"{action} within a resize"
        life.resizing_to = action.placement
        life.holds |= counted(action.placement)

    # -- always --------------------------------------------------------------------------------------

    def _check_capacity(self) -> None:
        self._within("held", {name: life.holds for name, life in self.jobs.items()})
        for name, life in self.jobs.items():
            assert not (life.outcome and life.running), f"{name} runs after its end"

    def _within(self, what: str, holdings: dict[str, Counter[Key]]) -> None:
        used: Counter[tuple[str, str]] = Counter()
        for name, held in holdings.items():
            for (node, role), count in held.items():
                demand = self.jobs[name].spec.role(role).demand
                used[node, "gpus"] += demand.gpus * count
                for resource, amount in demand.others(count):
                    used[node, resource] += amount  # type: ignore[assignment]
        for (node, resource), amount in used.items():
            limit = self.nodes[node].gpus if resource == "gpus" else self.nodes[node].limit(resource)
            assert amount <= limit * (1 + 1e-9), f"{amount} of {limit} {resource} {what} on {node}"

    def check_end(self) -> None:
        """At the end of a workload: every attempt has ended once, and every job that could has finished."""
        for name, life in self.jobs.items():
            for attempt in range(1, life.attempt + 1):
                assert self.ends[name, attempt] == 1, (
                    f"attempt {attempt} of {name} ended {self.ends[name, attempt]} times"
                )
            if life.outcome is None:
                doomed = any(self.jobs[a].outcome != "succeeded" for a in life.spec.after)
                assert doomed, f"{name} could finish and has not"
                life.outcome = "cancelled"

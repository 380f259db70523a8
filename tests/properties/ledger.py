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
    JobHung,
    JobQuarantined,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    PauseRequested,
    Placement,
    QuotaSet,
    Record,
    ReplicasReleased,
    ResizeJob,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
    StartJob,
    StopJob,
    gpus_of,
)

#: Node, role, group that shares GPUs, and the share of them; without a group they are its own.
Key = tuple[str, str, str, float]


@dataclass
class Life:
    """One job, as the log tells it."""

    spec: JobSpec
    attempt: int = 0
    #: Replicas by node, role, group and share.
    holds: Counter[Key] = field(default_factory=Counter)
    placement: Placement = NOWHERE
    resizing_to: Placement | None = None
    stopping: bool = False
    target: Placement = NOWHERE
    failures: int = 0
    cancelled: bool = False
    outcome: str | None = None
    on_hold: bool = False
    #: Its attempt is being stopped for a failure.
    failing: str = ""
    #: After a failure: not before.
    not_before: float = 0.0
    kills: list[float] = field(default_factory=list)
    at_once: int = 0
    began: float | None = None
    worked: bool = False
    #: Seconds of training that were not lost, and since when it trains.
    trained_s: float = 0.0
    trains_since: float | None = None
    #: When its limit was last set: one that is exceeded already is acted upon at the end of that instant.
    changed_at: float = 0.0

    def trains(self, since: float | None, at: float, *, lost: bool = False) -> None:
        """It trains from ``since`` on, or (None) no more."""
        if self.trains_since is not None and not lost:
            self.trained_s += at - self.trains_since
        self.trains_since = since

    @property
    def running(self) -> bool:
        return bool(self.holds)


def counted(placement: Placement) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for slot in placement.slots:
        assert slot.replicas > 0
        assert not any(key[:2] == (slot.node, slot.role) for key in found), (
            "two slots of one role on one node"
        )
        assert slot.group or slot.share == 1.0, "a share of GPUs without a group"
        found[slot.node, slot.role, slot.group, slot.share] = slot.replicas
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
        self.quotas: dict[str, int] = {}
        self.action = 0

    def take(self, record: Record) -> None:
        assert record.seq == self.seq + 1, "a hole in the log"
        assert record.at >= self.at, "time went backwards"
        self.seq, self.at = record.seq, record.at
        handler = getattr(self, "_" + type(record.event).__name__, None)
        if handler is not None:
            handler(record.event)
        self._cancel_dependents()
        self._check_capacity()
        self._check_limits()

    def _cancel_dependents(self) -> None:
        """Jobs that wait for one that did not succeed are cancelled, and stay so if that is tried again."""
        lost: list[Life] | None = None
        while lost is None or lost:
            ended = {name for name, life in self.jobs.items() if life.outcome in ("failed", "cancelled")}
            lost = [x for x in self.jobs.values() if x.outcome is None and ended & set(x.spec.after)]
            for life in lost:
                life.outcome, life.target = "cancelled", NOWHERE

    # -- facts ---------------------------------------------------------------------------------------

    def _NodeJoined(self, event: NodeJoined) -> None:  # noqa: N802
        self.nodes[event.node.name] = event.node
        self.lost.discard(event.node.name)  # what was drained stays so

    def _NodeLost(self, event: NodeLost) -> None:  # noqa: N802
        self.lost.add(event.node)
        self._void(event.node, evenly=True)

    def _NodeDrained(self, event: NodeDrained) -> None:  # noqa: N802
        self.drained.add(event.node)
        self._void(event.node, evenly=False)

    def _NodeOpened(self, event: NodeOpened) -> None:  # noqa: N802
        self.drained.discard(event.node)

    def _QuotaSet(self, event: QuotaSet) -> None:  # noqa: N802
        self.quotas.pop(event.group, None)
        if event.gpus is not None:
            self.quotas[event.group] = event.gpus

    def _void(self, node: str, *, evenly: bool) -> None:
        """Promises on a node that went away are void (a job that may not be preempted stays when drained)."""
        for life in self.jobs.values():
            touched = any(slot.node == node for slot in life.target.slots)
            gone = evenly and any(key[0] == node for key in life.holds)
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

    def _PauseRequested(self, event: PauseRequested) -> None:  # noqa: N802
        life = self.jobs.get(event.job)
        if life is not None and life.outcome is None and not life.cancelled:
            life.on_hold, life.target = True, NOWHERE

    def _ResumeRequested(self, event: ResumeRequested) -> None:  # noqa: N802
        if event.job in self.jobs:
            self.jobs[event.job].on_hold = False

    def _RetryRequested(self, event: RetryRequested) -> None:  # noqa: N802
        life = self.jobs.get(event.job)
        if life is None or life.outcome not in ("failed", "cancelled"):
            return
        others = [self.jobs[name] for name in life.spec.after if name in self.jobs]
        if all(other.outcome in (None, "succeeded") for other in others):
            life.outcome, life.cancelled, life.on_hold = None, False, False
            life.failures = life.at_once = 0
            life.kills, life.not_before, life.trained_s = [], 0.0, 0.0

    def _SpecChanged(self, event: SpecChanged) -> None:  # noqa: N802
        life = self.jobs.get(event.job)
        if life is not None and life.outcome is None:
            life.spec, life.changed_at = event.spec, self.at

    def _JobStarted(self, event: JobStarted) -> None:  # noqa: N802
        life = self._current(event.job, event.attempt)
        if life is not None and life.began is None and not life.stopping:
            life.began = self.at
            life.trains(self.at, self.at)

    def _Measured(self, event: Measured) -> None:  # noqa: N802
        life = self._current(event.job, event.attempt)
        if life is not None:
            life.worked = True

    def _JobHung(self, event: JobHung) -> None:  # noqa: N802
        life = self._current(event.job, event.attempt)
        if life is not None and not life.stopping and not life.cancelled:
            life.failing, life.target = "hang", NOWHERE

    def _JobQuarantined(self, event: JobQuarantined) -> None:  # noqa: N802
        life = self.jobs.get(event.job)
        if life is not None and life.outcome is None:
            life.on_hold, life.target = True, NOWHERE

    def _ReplicasReleased(self, event: ReplicasReleased) -> None:  # noqa: N802
        life = self._current(event.job, event.attempt)
        if life is not None and not life.stopping and life.resizing_to == event.placement:
            life.holds = counted(event.placement)

    def _JobResized(self, event: JobResized) -> None:  # noqa: N802
        life = self._current(event.job, event.attempt)
        if life is not None and not life.stopping and life.resizing_to == event.placement:
            life.holds, life.placement = counted(event.placement), event.placement
            life.resizing_to = None
            life.trains(self.at, self.at)

    def _JobStopped(self, event: JobStopped) -> None:  # noqa: N802
        asked = self.jobs[event.job].stopping
        life = self._ended(event.job, event.attempt, lost=event.cause in ("lost", "node-lost"))
        if life.cancelled:
            life.outcome = "cancelled"
        elif life.failing:
            self._failed(life)
        elif event.cause == "preempted" and not asked:
            life.kills = [at for at in life.kills if at > self.at - 600]
            if len(life.kills) == 3:
                self._failed(life)
            else:
                life.kills.append(self.at)

    def _JobFinished(self, event: JobFinished) -> None:  # noqa: N802
        life = self._ended(event.job, event.attempt)
        if event.outcome == "failed" and life.cancelled:
            life.outcome = "cancelled"
        elif event.outcome == "failed":
            self._failed(life)
        else:
            life.outcome = event.outcome

    def _failed(self, life: Life) -> None:
        soon = not life.worked and (life.began is None or self.at - life.began <= 30)
        life.at_once = life.at_once + 1 if soon else 0
        over, life.failing = life.failing == "time-limit", ""
        if over or life.failures >= life.spec.retries or life.at_once >= 3:
            life.outcome = "failed"
        else:
            life.failures += 1
            life.not_before = self.at + min(10 * 2 ** (life.failures - 1), 300)
            life.target = NOWHERE

    def _ended(self, job: str, attempt: int, *, lost: bool = False) -> Life:
        life = self.jobs[job]
        assert life.attempt == attempt, "an attempt ended that is not the newest"
        assert life.running, "an attempt ended twice"
        self.ends[job, attempt] += 1
        life.trains(None, self.at, lost=lost)
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
        before = self._promised_by_group()
        for name, target in event.targets.items():
            life = self.jobs[name]
            assert life.outcome is None, f"{name} got a target after its end"
            assert not life.cancelled, f"{name} got a target after its cancellation"
            assert not life.on_hold, f"{name} got a target on hold"
            assert not life.failing, f"{name} got a target while it is failing"
            assert self.at >= life.not_before, f"{name} got a target before it may be tried again"
            if life.running and life.target:
                assert life.spec.preemptible, f"{name} may not be moved"
            for role in life.spec.roles if target else ():
                assert role.min <= target.count(role.name) <= role.max, f"{name} got {target}"
            for slot in target.slots:
                assert slot.node not in self.lost | self.drained, f"{name} was promised {slot}"
            life.target = target
        self._within("promised", {name: counted(life.target) for name, life in self.jobs.items()})
        for group, gpus in self._promised_by_group().items():
            assert gpus <= max(self.quotas.get(group, gpus), before[group]), f"{group} got {gpus} GPUs"

    def _promised_by_group(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for life in self.jobs.values():
            found[life.spec.user] += gpus_of(life.target, life.spec)
        return found

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
        assert not life.on_hold, f"{action}: it is on hold"
        assert action.attempt == life.attempt + 1, f"{action} after attempt {life.attempt}"
        assert action.placement == life.target, f"{action} is not what was decided"
        for slot in action.placement.slots:
            assert slot.node not in self.lost | self.drained, f"{action} on a node that takes nobody"
        for name in life.spec.after:
            assert self.jobs[name].outcome == "succeeded", f"{action} before {name} has succeeded"
        life.attempt, life.holds, life.placement = action.attempt, counted(action.placement), action.placement
        life.began, life.worked = None, False

    def _change(self, life: Life, action: ResizeJob | StopJob) -> None:
        if isinstance(action, StopJob):
            assert life.spec.preemptible or life.on_hold or action.why not in ("pause", "drain"), (
                f"{action}: not preemptible"
            )
            life.trains(None, self.at, lost=action.why == "node-lost")
            if action.why == "time-limit":
                limit_s = life.spec.time_limit_s
                assert limit_s is not None, f"{action}: it has none"
                assert life.trained_s >= limit_s - 1e-6, f"{action}: it trained {life.trained_s} s"
                life.failing, life.target = action.why, NOWHERE
            life.stopping = True
            return
        assert action.before == life.placement, f"{action}: it is on {life.placement}"
        assert action.placement == life.target, f"{action} is not what was decided"
        assert life.resizing_to is None, f"{action} within a resize"
        life.trains(None, self.at)
        life.resizing_to = action.placement
        life.holds |= counted(action.placement)

    # -- always --------------------------------------------------------------------------------------

    def _check_capacity(self) -> None:
        self._within("held", {name: life.holds for name, life in self.jobs.items()})
        for name, life in self.jobs.items():
            assert not (life.outcome and life.running), f"{name} runs after its end"

    def _check_limits(self) -> None:
        for name, life in self.jobs.items():
            if life.trains_since is None or life.spec.time_limit_s is None:
                continue
            # one whose limit was lowered while it did not train is stopped at the instant it begins
            if self.at > max(life.changed_at, life.trains_since):
                trained_s = life.trained_s + self.at - life.trains_since
                assert trained_s <= life.spec.time_limit_s + 1e-6, f"{name} trained for {trained_s} s"

    def _within(self, what: str, holdings: dict[str, Counter[Key]]) -> None:
        used: Counter[tuple[str, str]] = Counter()
        shares: Counter[tuple[str, str]] = Counter()
        sizes: dict[tuple[str, str], int] = {}
        for name, held in holdings.items():
            for (node, role, group, share), count in held.items():
                demand = self.jobs[name].spec.role(role).demand
                if group:
                    shares[node, group] += share  # type: ignore[assignment]
                    size = sizes.setdefault((node, group), demand.gpus * count)
                    assert size == demand.gpus * count, f"jobs share {size} and {demand.gpus * count} GPUs"
                else:
                    used[node, "gpus"] += demand.gpus * count
                for resource, amount in demand.others(count):
                    used[node, resource] += amount  # type: ignore[assignment]
        for (node, group), total in shares.items():
            assert total <= 1 + 1e-9, f"{total} of the GPUs that {group} share {what} on {node}"
            used[node, "gpus"] += sizes[node, group]
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
            assert life.outcome is not None, f"{name} could finish and has not"

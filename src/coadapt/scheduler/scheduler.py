"""The state machine: ``handle(record)`` -> decisions. No clock, no I/O, no threads.

Facts go in one by one; what comes out are events to append to the log (``DecisionMade``,
``ActionsIssued``), already folded into the state, whose actions the loop then applies. A decision is
made on ``Woke`` only: whatever calls for one moves ``wake_at`` to now, so that all facts of one instant
are in before it, and a burst of them costs one decision.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from coadapt.model import (
    DECISIONS,
    Action,
    ActionsIssued,
    AnyEvent,
    ControllerStarted,
    DecisionMade,
    Record,
    Woke,
)
from coadapt.placement import Placer
from coadapt.policies._base import Policy
from coadapt.scheduler.curve_source import CurveSource, FittedCurves
from coadapt.scheduler.cycle import decide
from coadapt.scheduler.quarantine import decide_without_failing_jobs
from coadapt.scheduler.ready_actions import over_limit, settle
from coadapt.scheduler.state.state import SchedulerState


class Scheduler:
    """Joins a policy, a placer and a source of curves over one state.

    Args:
        policy: proposes who gets how much.
        placer: finds nodes for what the policy proposes.
        curves: source of the scaling curves.
        interval_s: round mode: decisions at multiples of it only. None: decisions when something happens.
        min_interval_s: least seconds between two decisions without ``interval_s``.
        seed: seed of the random generators of policies.
        state: state to start from; None: an empty one.
        quarantine: leave jobs out of decisions that make the policy raise (a live cluster); False: raise.
    """

    def __init__(
        self,
        policy: Policy,
        placer: Placer,
        *,
        curves: CurveSource | None = None,
        interval_s: float | None = None,
        min_interval_s: float = 0.0,
        seed: int = 0,
        state: SchedulerState | None = None,
        quarantine: bool = False,
    ) -> None:
        self.policy, self.placer = policy, placer
        self.curves = curves if curves is not None else FittedCurves()
        self.interval_s, self.min_interval_s, self.seed = interval_s, min_interval_s, seed
        self.state = state if state is not None else SchedulerState()
        self._warm: Any = None
        self._decide = decide_without_failing_jobs if quarantine else decide

    def fold(self, records: Iterable[Record]) -> None:
        """Brings the state to what it is after ``records``, asking no policy."""
        for record in records:
            self.state.apply(record)

    def handle(self, record: Record) -> list[AnyEvent]:
        """Takes one fact in; returns what was decided and issued because of it, in order."""
        state = self.state
        state.apply(record)
        if isinstance(record.event, DECISIONS):
            return []
        out: list[AnyEvent] = []
        if isinstance(record.event, ControllerStarted):
            self._warm = None
        elif isinstance(record.event, Woke):
            # only now, when all facts of this instant are in: a job may have finished just in time
            if state.limits:
                self._issue(over_limit(state), record, out)
            if self._due():
                decision, self._warm = self._decide(
                    state, self.policy, self.placer, self.curves.of(state), seed=self.seed, warm=self._warm
                )
                self._take(decision, record, out)
        if state.unsettled:
            self._issue(settle(state), record, out)
        return out

    def try_decision(self, hidden: Collection[str] = ()) -> DecisionMade:
        """Returns the decision that would be made now without the jobs in ``hidden``; changes nothing."""
        curves = self.curves.of(self.state)
        found, _ = decide(
            self.state, self.policy, self.placer, curves, seed=self.seed, warm=self._warm, hidden=hidden
        )
        return found

    def _issue(self, actions: list[Action], cause: Record, out: list[AnyEvent]) -> None:
        if actions:
            self._take(ActionsIssued(decision=self.state.decisions, actions=tuple(actions)), cause, out)

    def _take(self, event: AnyEvent, cause: Record, out: list[AnyEvent]) -> None:
        out.append(event)
        self.state.apply(Record(seq=cause.seq + len(out), at=cause.at, event=event))

    def _due(self) -> bool:
        decide_at = self._decide_at
        return decide_at is not None and decide_at <= self.state.now

    @property
    def wake_at(self) -> float | None:
        """Time at which the scheduler expects ``Woke``; None: not before something happens.

        It is due for a decision, for a job that may be tried again, or for one that reaches its time limit: the
        latter two also between rounds.
        """
        earliest = self._decide_at
        # asked after every event
        for moments in (self.state.retries, self.state.limits):
            at = moments.next if moments else None
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    @property
    def _decide_at(self) -> float | None:
        state = self.state
        if self.interval_s is not None:
            return self._next_round(self.interval_s)
        wake_at = state.now if state.undecided else state.policy_wake_at
        if wake_at is None or state.decided_at is None:
            return wake_at
        return max(wake_at, state.decided_at + self.min_interval_s)

    def _next_round(self, interval_s: float) -> float | None:
        state = self.state
        if not state.active:
            return None
        number = math.ceil(state.now / interval_s - 1e-9)
        if state.decided_at is not None and number * interval_s <= state.decided_at:
            number += 1
        return number * interval_s

"""Decides without the jobs on which a decision fails, and records why each was left out.

A policy or predictor that raises on the figures of one job must not stop the decisions about all others. The search
is a bisection over the active jobs in their order: the shortest prefix that raises ends with a job that is part of the
cause. That job is hidden, and the rest is tried again. The search depends on the state alone, so a replay finds the
same jobs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from coadapt.model import DecisionMade
from coadapt.placement import Placer
from coadapt.policies import Curves, Policy
from coadapt.scheduler.cycle import decide
from coadapt.scheduler.state.state import SchedulerState

log = logging.getLogger(__name__)

#: Jobs that one decision leaves out at most; if more are needed, the policy itself is broken.
MOST_JOBS = 16
#: What ends a decision. A policy that calls ``sys.exit`` must not end the controller.
FAULTS = (Exception, SystemExit)
#: Addresses of objects differ from process to process.
_ADDRESS = re.compile(r"0x[0-9a-f]+")

Outcome = tuple[DecisionMade, Any]


def decide_without_failing_jobs(
    state: SchedulerState, policy: Policy, placer: Placer, curves: Curves, *, seed: int, warm: Any
) -> Outcome:
    """As ``cycle.decide``, but jobs that make it raise are left out and named in the decision.

    Raises what the policy raised if no single job is the cause, or more than ``MOST_JOBS`` are.
    """
    hidden: dict[str, str] = {}

    def attempt(also: Sequence[str] = ()) -> Outcome:
        # a decision that failed may have left its warm start half changed
        return decide(state, policy, placer, curves, seed=seed, warm=None, hidden={*hidden, *also})

    try:
        return decide(state, policy, placer, curves, seed=seed, warm=warm)
    except FAULTS as error:
        first: BaseException = error
    for _ in range(MOST_JOBS + 1):
        try:
            decision, warm_next = attempt()
        except FAULTS:
            pass
        else:
            return _naming(decision, hidden), warm_next
        names = [name for name in state.active if name not in hidden]
        count, cause = shortest_failing(names, attempt)
        if not count or cause is None:
            raise first
        culprit = names[count - 1]
        hidden[culprit] = reason_of(policy, cause)
        log.error("job %s is quarantined: %s", culprit, hidden[culprit], exc_info=cause)
    raise first


def shortest_failing(
    names: Sequence[str], attempt: Callable[[Sequence[str]], object]
) -> tuple[int, BaseException | None]:
    """Returns the length of a prefix of ``names`` that raises although the one before does not, and what it raises.

    0: it raises also without any of them. ``attempt`` is called with the names to hide; with none it raises.
    """

    def fault(count: int) -> BaseException | None:
        try:
            attempt(names[count:])
        except FAULTS as error:
            return error
        return None

    error = fault(0)
    if error is not None:
        return 0, error
    works, fails = 0, len(names)
    for _ in range(len(names).bit_length() + 1):
        if fails - works <= 1:
            break
        middle = (works + fails) // 2
        if (found := fault(middle)) is None:
            works = middle
        else:
            fails, error = middle, found
    return fails, error if error is not None else fault(fails)


def reason_of(policy: Policy, error: BaseException) -> str:
    """Describes what a policy raised, the same in every process."""
    said = _ADDRESS.sub("0x", " ".join(str(error).split()))
    return f"{type(policy).__name__} cannot decide with it ({type(error).__name__}: {said[:200]})"


def _naming(decision: DecisionMade, hidden: dict[str, str]) -> DecisionMade:
    if not hidden:
        return decision
    return msgspec.structs.replace(decision, quarantined=hidden)

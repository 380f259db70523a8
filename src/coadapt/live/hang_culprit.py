"""Finds the job on which decisions of the controller hang or crash, after the supervisor had to replace it.

A decision that hangs cannot be interrupted, so it is tried in a forked process with a time limit, with fewer and fewer
jobs, by bisection: the shortest prefix of the active jobs that hangs ends with a job that is part of the cause. What
is found is recorded as ``JobQuarantined``, because another machine might not find it again.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from coadapt.executors.node.processes import dies_with
from coadapt.live.child_lives import Hang
from coadapt.model import JobQuarantined
from coadapt.runtime.controller import Controller
from coadapt.scheduler import Scheduler
from coadapt.scheduler.quarantine import MOST_JOBS, shortest_failing

log = logging.getLogger(__name__)
#: Kills on the same record after which its job is quarantined.
HANGS = 2
_LOOK_S = 0.05


class _EndlessError(Exception):
    """A trial decision did not end in time."""


def suspects(controller: Controller, hang: Hang | None, try_s: float) -> Iterator[JobQuarantined]:
    """Returns the jobs to quarantine before the first decision.

    Args:
        controller: the controller, which has folded its log.
        hang: what the last controllers hung on; None: they did not.
        try_s: seconds that a trial decision may take.
    """
    if hang is None or hang.times < HANGS:
        return
    if hang.stage == "record" and hang.job:
        if hang.job in controller.scheduler.state.jobs:
            reason = f"{hang.times} controllers hung on a record of it"
            yield JobQuarantined(job=hang.job, reason=reason)
    elif hang.stage == "decision":
        for job in endless_jobs(controller.scheduler, try_s, controller.beat):
            reason = f"decisions with it do not end: {hang.times} controllers hung or died, and a trial of {try_s:g} s did, too"
            yield JobQuarantined(job=job, reason=reason)


def endless_jobs(scheduler: Scheduler, try_s: float, beat: Callable[[], None]) -> Iterable[str]:
    """Returns the active jobs without which a decision ends; none if it ends anyway, or hangs without any job."""
    found: list[str] = []

    def attempt(hidden: Sequence[str] = ()) -> None:
        if not _ends(lambda: scheduler.try_decision({*found, *hidden}), try_s, beat):
            raise _EndlessError

    for _ in range(MOST_JOBS):
        try:
            attempt()
        except _EndlessError:
            names = [name for name in scheduler.state.active if name not in found]
            count, _ = shortest_failing(names, attempt)
            if not count:
                log.error("decisions hang also without any job; the policy is at fault")
                return []
            found.append(names[count - 1])
            log.error("decisions with job %s do not end", found[-1])
        else:
            return found
    return found


def _ends(decide: Callable[[], object], limit_s: float, beat: Callable[[], None]) -> bool:
    """Whether it returns or raises within the limit, tried in a process of its own, which it may also end or crash."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        # whatever happens, nothing of ours may run on in the copy: no finally, no file is flushed
        try:
            dies_with(parent)()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            decide()
        finally:
            os._exit(0)
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                return status == 0
            beat()
            time.sleep(_LOOK_S)
        return False
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

"""What ``coadapt doctor`` looks at in the store: does the log fold, do the snapshots say the same, who has the lease."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from coadapt.cli.findings import Finding, bad, ok, warn
from coadapt.cluster.controller import LEASE_S
from coadapt.cluster.home import Home
from coadapt.cluster.processes import is_gone
from coadapt.errors import CoadaptError
from coadapt.runtime import Holder
from coadapt.scheduler import SchedulerState, saved
from coadapt.store import open_store
from coadapt.store.log import SqlLog

#: Seconds by which the log may be ahead of the clock.
_AHEAD_S = 60.0


def store_findings(home: Home, *, full: bool) -> Iterator[Finding]:
    """``full``: the whole log is folded, not only what came after the older snapshot."""
    with closing(open_store(home.store(home.read_options())).log()) as log:
        state, findings = _fold(log, full)
        yield from findings
        yield _lease(log.holder())
        if state is not None:
            ahead_s = state.now - time.time()
            if ahead_s > _AHEAD_S:
                yield warn(
                    "clock",
                    f"the log is {ahead_s:.0f} s ahead of this machine's clock",
                    "set the clock; times of jobs are wrong until it has caught up, order is not",
                )
            else:
                yield ok("clock", "not behind the log")


def _fold(log: SqlLog, full: bool) -> tuple[SchedulerState | None, list[Finding]]:
    try:
        begin, state = _beginning(log, full)
        newest = log.newest_snapshot()
        agrees: bool | None = None
        records = 0
        for record in log.read(begin):
            state.apply(record)
            records += 1
            if newest is not None and record.seq == newest[0]:
                agrees = saved.save(state) == saved.save(saved.load(newest[1]))
        state.validate()
    except CoadaptError as error:
        return None, [bad("store", str(error), "restore a backup: coadapt serve --store FILE")]
    found = [
        ok(
            "store",
            f"{log.last() + 1:,} records, {records:,} folded, {len(state.jobs):,} jobs; the state is valid",
        )
    ]
    if newest is None:
        found.append(ok("snapshots", "none yet; one is made every 10,000 records"))
    elif agrees is False:
        found.append(
            bad(
                "snapshots",
                f"the one of record {newest[0]} does not agree with the log",
                "report this; the log is right",
            )
        )
    else:
        said = "agrees with the log" if agrees else "is the beginning of what is kept"
        found.append(ok("snapshots", f"the one of record {newest[0]} {said}"))
    return state, found


def _beginning(log: SqlLog, full: bool) -> tuple[int, SchedulerState]:
    """Where to fold from: the older snapshot if it can be loaded, so that the newest can be checked against it."""
    if full and log.first() == 0:
        return -1, SchedulerState()
    newest = log.newest_snapshot()
    older = log.newest_snapshot(before=newest[0]) if newest is not None else None
    if older is not None:
        return older[0], saved.load(older[1])
    if log.first() > 0 and newest is not None:
        return newest[0], saved.load(newest[1])
    return -1, SchedulerState()


def _lease(holder: Holder | None) -> Finding:
    if holder is None:
        return warn("lease", "no controller is at work", "coadapt serve")
    if is_gone(holder.owner):
        return warn("lease", f"its holder is dead ({holder.owner})", "coadapt serve takes it over at once")
    if holder.age_s > LEASE_S:
        return bad(
            "lease",
            f"{holder.owner} lives and has not renewed it for {holder.age_s:.0f} s",
            "see controller.log; if it hangs, kill that process and the supervisor starts another",
        )
    return ok("lease", f"{holder.owner}, renewed {holder.age_s:.1f} s ago")

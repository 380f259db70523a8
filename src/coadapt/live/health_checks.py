"""The checks of ``coadapt doctor``: home, processes, port, machine, store and lease. They are read-only.

Each check returns findings with a verdict and a remedy. The checks of the store fold the log, compare it with the
snapshots, and report who has the lease.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.metadata import version
from typing import Literal, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from coadapt.errors import CoadaptError, StoreError
from coadapt.executors import find_executor
from coadapt.executors.node.keeper_shutdown import is_locked, pid_in
from coadapt.executors.node.processes import is_gone
from coadapt.live.child_lives import read_lives
from coadapt.live.connect import home_flag
from coadapt.live.garbage import garbage_plan, last_run
from coadapt.model.lease import Holder
from coadapt.runtime.controller import LEASE_S, read_status
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.store.log import SqlLog
from coadapt.units import format_duration
from coadapt.wire.serve_options import GC_S

Verdict = Literal["ok", "warn", "bad"]
_RESTORE = "restore a backup: coadapt restore FILE --home NEW"


class Finding(NamedTuple):
    """Result of one check: the ``verdict`` on ``subject``, and the ``remedy``.

    If ``fatal``, no further checks are possible.
    """

    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""
    fatal: bool = False


def ok(subject: str, text: str) -> Finding:
    """Returns a finding that ``subject`` works as it should."""
    return Finding(subject, "ok", text)


def warn(subject: str, text: str, remedy: str = "") -> Finding:
    """Returns a finding that ``subject`` works now but may fail later."""
    return Finding(subject, "warn", text, remedy)


def bad(subject: str, text: str, remedy: str = "", *, fatal: bool = False) -> Finding:
    """Returns a finding that ``subject`` does not work.

    ``text`` says what was found, ``remedy`` what to do; if ``fatal``, no further checks are possible.
    """
    return Finding(subject, "bad", text, remedy, fatal)


#: Seconds by which the log may be ahead of the clock.
_AHEAD_S = 60.0


def store_findings(home: Home, *, full: bool) -> Iterator[Finding]:
    """Checks store, snapshots and lease. ``full``: folds the whole log, not only the records after the older snapshot."""
    with closing(open_store(home.store(home.read_options())).log()) as log:
        if damage := log.damage(full=full):
            yield bad(
                "store",
                f"damaged pages in {log.name}: {damage[0]}",
                _RESTORE,
            )
        state, findings = _fold(log, full)
        yield from findings
        yield from _snapshot_failures(log)
        yield _lease(log.holder(), f"coadapt serve{home_flag(home)}")
        if state is not None:
            yield from _quarantined(state)
            ahead_s = state.now - time.time()
            if ahead_s > _AHEAD_S:
                yield warn(
                    "clock",
                    f"the event log is {ahead_s:.0f} s ahead of the clock of this machine",
                    "set the clock; times of jobs are wrong until the clock has caught up, their order is not",
                )
            else:
                yield ok("clock", "not behind the event log")


def _fold(log: SqlLog, full: bool) -> tuple[SchedulerState | None, list[Finding]]:
    try:
        state = SchedulerState()
        begin, state = _beginning(log, full)
        newest = log.newest_snapshot()
        agrees: bool | None = None
        records = 0
        for record in log.read(begin):
            state.apply(record)
            records += 1
            if newest is not None and record.seq == newest[0]:
                agrees = saved_state.save(state) == saved_state.save(saved_state.load(newest[1]))
        state.validate()
    except CoadaptError as error:
        return None, [bad("store", str(error), _RESTORE)]
    except (ArithmeticError, LookupError, ValueError) as error:
        said = f"record {state.seq + 1} cannot be folded or saved ({type(error).__name__}: {error})"
        return None, [bad("store", said, "report this; see controller.log")]
    found = [
        ok(
            "store",
            f"{_counted(log.last() + 1, 'record')}, {records:,} checked, {_counted(len(state.jobs), 'job')}; the state is valid",
        )
    ]
    if newest is None:
        found.append(ok("snapshots", "none yet; one is written every 10,000 records"))
    elif agrees is False:
        found.append(
            bad(
                "snapshots",
                f"the snapshot at record {newest[0]} differs from the event log",
                "please report this; the event log is correct",
            )
        )
    else:
        result = "agrees with the event log" if agrees else "is the oldest record that is kept"
        found.append(ok("snapshots", f"the snapshot at record {newest[0]} {result}"))
    return state, found


def _snapshot_failures(log: SqlLog) -> Iterator[Finding]:
    """What the controller counted; a snapshot that was not saved costs time at the next start, and nothing else."""
    status = read_status(log.status())
    if status.snapshot_error:
        yield bad(
            "snapshots",
            f"the last one could not be saved ({status.snapshot_error}); {status.snapshot_failures} failed in all",
            "the log is complete; report this, the next start takes longer",
        )
    elif status.snapshot_failures:
        yield warn("snapshots", f"{status.snapshot_failures} could not be saved, the last one could")


def _quarantined(state: SchedulerState) -> Iterator[Finding]:
    for job in state.jobs.values():
        if job.quarantine is not None:
            yield bad(
                "quarantine",
                f"{job.id} of {job.spec.user or 'nobody'} is left out of decisions: {job.quarantine}",
                f"coadapt retry {job.id} releases it without its measurements; coadapt cancel {job.id} ends it",
            )


def _beginning(log: SqlLog, full: bool) -> tuple[int, SchedulerState]:
    """Where to fold from: the older snapshot if it can be loaded, so that the newest can be checked against it."""
    if full and log.first() == 0:
        return -1, SchedulerState()
    newest = log.newest_snapshot()
    older = log.newest_snapshot(before=newest[0]) if newest is not None else None
    if older is not None:
        return older[0], saved_state.load(older[1])
    if log.first() > 0 and newest is not None:
        return newest[0], saved_state.load(newest[1])
    return -1, SchedulerState()


def _lease(holder: Holder | None, serve: str) -> Finding:

    if holder is None:
        return warn("lease", "no controller is running", f"start it: {serve}")
    if is_gone(holder.owner):
        return warn("lease", f"its holder has ended ({holder.owner})", f"restart it: {serve}")
    if holder.age_s > LEASE_S:
        return bad(
            "lease",
            f"{holder.owner} is running but has not renewed it for {holder.age_s:.0f} s",
            "see controller.log; the supervisor replaces it if it makes no progress (coadapt serve --liveness)",
        )
    return ok("lease", f"{holder.owner}, renewed {holder.age_s:.1f} s ago")


#: Free bytes on the disk: a warning below the first, an error below the second.
_LITTLE, _TOO_LITTLE = 2 << 30, 100 << 20
#: Seconds for which ends of children in a row are the present state of affairs.
_RECENT_S = 120.0


def examine(home: Home, *, full: bool = False) -> list[Finding]:
    """Runs all checks. ``full``: check the whole event log."""
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("versions", _versions),
        ("home", lambda: _home(home)),
        ("disk", lambda: _disk(home)),
        ("garbage", lambda: _garbage(home)),
        ("store", lambda: store_findings(home, full=full)),
        ("processes", lambda: _processes(home)),
        ("port", lambda: _port(home)),
        ("machine", _machine),
    ]
    found: list[Finding] = []
    for subject, check in checks:
        try:
            found += check()
        except StoreError as error:
            found.append(bad(subject, str(error), _RESTORE))
        except (CoadaptError, OSError) as error:
            found.append(bad(subject, str(error)))
        if found[-1].fatal:
            break
    return found


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield ok("versions", f"coadapt {version('coadapt')}, Python {python}")


def _home(home: Home) -> Iterator[Finding]:
    if not home.options_file.exists():
        yield bad(
            "home",
            f"{home.path} is not the home directory of a cluster",
            f"create one: coadapt serve{home_flag(home)}",
            fatal=True,
        )
        return
    home.read_options()
    mine = home.path.stat().st_uid == os.getuid()
    open_to_others = [
        path.name
        for path in (home.path, home.token, home.options_file, home.path / "store.db", home.path / "job_key")
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & (0o066 if path == home.path else 0o077)
    ]
    if open_to_others:
        names = ", ".join(open_to_others)
        yield bad("permissions", f"other users can read {names}", f"chmod -R go= {home.path}")
    elif not mine:
        yield warn("permissions", f"{home.path} belongs to another user", "run commands as that user")
    else:
        yield ok("permissions", f"only the owner can read {home.path}")


def _disk(home: Home) -> Iterator[Finding]:
    free = shutil.disk_usage(home.path).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < _TOO_LITTLE:
        yield bad("disk", text, "free some space: the controller cannot write and makes no decisions")
    elif free < _LITTLE:
        yield warn("disk", text, f"free some space soon; checkpoints are in {home.checkpoints}")
    elif (full_s := _full_in_s(last_run(home).free)) is not None and full_s < _SOON_S:
        yield warn(
            "disk",
            f"{text}; at the rate of the last day it is full in {format_duration(full_s)}",
            f"see what can go: coadapt gc --dry-run{home_flag(home)}",
        )
    else:
        yield ok("disk", text)


#: A disk that is full within so many seconds is worth a warning; samples must span at least so many.
_SOON_S, _LEAST_SPAN_S = 3 * 86400.0, 6 * 3600.0


def _full_in_s(free: Sequence[tuple[float, int]]) -> float | None:
    """Seconds until the disk is full, by how its free space went down; None: it does not, or too little is known."""
    if len(free) < 2 or free[-1][0] - free[0][0] < _LEAST_SPAN_S or free[-1][1] >= free[0][1]:
        return None
    return free[-1][1] * (free[-1][0] - free[0][0]) / (free[0][1] - free[-1][1])


#: Seconds after which a collection is overdue while the cluster runs, and bytes that are worth a remark.
_OVERDUE_S, _MUCH = 4 * GC_S, 1 << 30


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _garbage(home: Home) -> Iterator[Finding]:
    """Code and checkpoints of no job, what waits to be removed, and whether removing works."""
    found, run = garbage_plan(home), last_run(home)
    for kind in ("code", "checkpoints", "work"):
        orphans = [item for item in found.items if item.orphan and item.kind == kind]
        if orphans:
            size = sum(item.bytes for item in orphans)
            yield warn(
                kind,
                f"{'1 directory belongs' if len(orphans) == 1 else f'{len(orphans):,} directories belong'} to no job of this "
                f"cluster ({size / 1e6:.1f} MB), as {orphans[0].path}",
                f"remove them: coadapt gc{home_flag(home)}",
            )
    if run.error:
        yield bad("garbage", f"the last 'coadapt gc' failed: {run.error}", f"see {home.log('gc')}")
    elif is_locked(home.lock) and run.at and time.time() - run.at > _OVERDUE_S:
        ago = format_duration(time.time() - run.at)
        yield warn("garbage", f"'coadapt gc' last ran {ago} ago", f"see {home.log('gc')}")
    waiting, kept = sum(item.bytes for item in found.items), found.kept_checkpoints
    text = f"{waiting / 1e6:.1f} MB can be removed"
    if kept > _MUCH:
        text += (
            f"; checkpoints of ended jobs take {kept / 1e9:.1f} GB (coadapt serve --retain checkpoints=90d)"
        )
    yield ok("garbage", text)


#: Ends in a row, each soon after a start, that are no accident.
_CRASH_LOOP = 3


def _lives(home: Home) -> Iterator[Finding]:
    """How often controller and API were started again since ``coadapt serve``."""
    for name, lives in read_lives(home.children).items():
        again = max(lives.starts - 1, 0)
        if not again and not lives.hangs:
            continue
        ago_s = time.time() - lives.ended_at
        text = f"started again {_times(again)}"
        if lives.ended:
            text += f", the last {format_duration(max(ago_s, 0.0))} ago: it {lives.ended}"
        else:
            # nobody saw the end of a child whose supervisor was killed
            text += ", after another supervisor took over"
        if lives.hangs:
            text += f"; it hung {_times(lives.hangs)} and was killed"
            if lives.hang is not None and lives.hang.stage != "idle":
                on = f"a record of {lives.hang.job}" if lives.hang.job else "a decision"
                text += f", the last time in {on}"
        looping = lives.quick_ends >= _CRASH_LOOP and ago_s < _RECENT_S
        remedy = f"see {home.log(name)}"
        yield bad(name, text, remedy) if looping else warn(name, text, remedy)


def _times(count: int) -> str:
    return f"{count} time{'' if count == 1 else 's'}"


def _processes(home: Home) -> Iterator[Finding]:
    yield from _lives(home)
    if is_locked(home.lock):
        yield ok("supervisor", f"running as process {pid_in(home.lock)}")
    else:
        yield warn("supervisor", "not running", f"start it: coadapt serve{home_flag(home)}")
    if is_locked(home.standby_lock):
        yield ok("standby", f"running as process {pid_in(home.standby_lock)}")
    options = home.read_options()
    for finding in find_executor(options.executor).examine(home, options, served=is_locked(home.lock)):
        yield Finding(*finding)


def _port(home: Home) -> Iterator[Finding]:
    if not home.address.exists():
        if is_locked(home.lock):
            yield bad("API", "not listening", f"see {home.log('api')}")
        else:
            yield ok("API", "not listening, because the cluster is not running")
        return
    address = home.address.read_text().strip()
    try:
        if not address.startswith(("http://", "https://")):
            raise URLError(f"{address!r} is not an address")
        with urlopen(f"{address}/healthz", timeout=5.0) as answer:
            yield ok("API", f"answers at {address} ({answer.status})")
    except (URLError, OSError) as error:
        yield bad("API", f"does not answer at {address}: {error}", f"see {home.log('api')}")


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    gpus = "nvidia-smi found" if shutil.which("nvidia-smi") else "no NVIDIA driver"
    yield ok("machine", f"{cores} cores, {gpus}")
    if importlib.util.find_spec("torch") is None:
        yield warn(
            "PyTorch",
            "not installed for this interpreter; jobs may use their own",
            "for elastic jobs: pip install 'coadapt[torch]'",
        )
    else:
        yield ok("PyTorch", version("torch"))

"""``python -m coadapt.live.controller_process HOME [NAME]``: the controller as ``coadapt serve`` starts it.

While another controller holds the lease it waits as a standby, and takes over when that one is gone or hangs
(``live.standby``). ``NAME`` tells the controller of ``coadapt serve --standby`` from the first one, in the names of its files.

Exit codes: 0 stopped by a signal; 2 ``serve.json`` is invalid; 75 try again (the lease was lost, the store cannot be
written, or the keeper does not answer); 1 internal error.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coadapt.model import JobSpec
    from coadapt.runtime import Executor
    from coadapt.runtime.controller import Controller
    from coadapt.runtime.loop import Progress
    from coadapt.store.home import Home
    from coadapt.wire.serve_options import ServeOptions

log = logging.getLogger("coadapt.controller")
TRY_AGAIN = 75
#: Seconds that a trial decision may take, after controllers hung in decisions.
_LONGEST_TRIAL_S = 20.0


def agents_of(home: Home) -> Callable[[str], tuple[str, str]]:
    """Returns a function from a job to the address and the token of its agents; the address may change between starts."""
    from coadapt.store.home import secret_of
    from coadapt.wire.agent import job_token

    key = secret_of(home.path / "job_key")

    def agent_of(job: str) -> tuple[str, str]:
        try:
            address = home.address.read_text().strip()
        except OSError:
            return "", ""  # agents print their reports, and the keeper reads them
        return address, job_token(key, job)

    return agent_of


def make(home: Home, options: ServeOptions, progress: Progress | None = None) -> Controller:
    """Creates the controller with all its parts; takes the lease. ``progress`` records what it does."""
    from coadapt.executors import connect_executor
    from coadapt.executors.job_source import SpecJobSource
    from coadapt.executors.node.processes import is_gone, this_process
    from coadapt.live.child_lives import common_hang, read_lives
    from coadapt.live.hang_culprit import suspects
    from coadapt.runtime.controller import Controller, Watchdog, scheduler_of
    from coadapt.scheduler.state import saved_state
    from coadapt.store import open_store
    from coadapt.store.home import StoredCode

    scheduler, agent_of = scheduler_of(options), agents_of(home)
    store = open_store(home.store(options))
    events = store.log()

    def connect(spec_of: Callable[[str], JobSpec]) -> Executor:
        jobs = SpecJobSource(spec_of, agent_of, run_as=options.run_as)
        return connect_executor(
            options.executor, home, options, jobs=jobs, log=events.identity, epoch=events.epoch
        )

    return Controller(
        events,
        store.inbox(lambda: events.epoch),
        scheduler,
        connect,
        home=home.identity,
        owner=this_process(),
        is_gone=is_gone,
        saver=saved_state,
        watchdog=Watchdog(factor=options.hang_factor, least_s=options.hang_least_s),
        retain_s=None if options.retain_days is None else 86400.0 * options.retain_days,
        progress=progress,
        code=StoredCode(home.code),
        suspects=lambda controller: suspects(
            controller,
            common_hang(read_lives(home.children)),
            min(options.liveness_s / 2, _LONGEST_TRIAL_S),
        ),
    )


def run(home: Home, name: str = "controller") -> int:
    """Runs until SIGTERM; returns the exit code. ``name``: of the controller, in the names of its files."""
    from coadapt.errors import CoadaptError, LeaseHeldError
    from coadapt.executors import find_executor
    from coadapt.live.controller_progress import ProgressFile
    from coadapt.live.standby import wait_for_lease
    from coadapt.model import ControllerStarted
    from coadapt.runtime.controller import scheduler_of
    from coadapt.store import open_store

    progress = ProgressFile(home.progress(name))
    options = home.read_options()
    # invalid options are permanent errors, and must not be retried
    find_executor(options.executor).offered_nodes(options)
    policy = type(scheduler_of(options).policy).__name__
    started = ControllerStarted(
        version=version("coadapt"), policy=policy, options=dict(options.options), seed=options.seed
    )
    controller = None
    signals: list[int] = []

    def stop(number: int, frame: Any) -> None:
        signals.append(number)
        if controller is not None:
            controller.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        store = open_store(home.store(options))
        while controller is None:
            if not wait_for_lease(store, progress.advanced, lambda: bool(signals)):
                return 0
            try:
                controller = make(home, options, progress)
            except LeaseHeldError as error:
                log.info("waiting: %s", error)
        if signals:
            controller.stop()
        controller.run(started)
        controller.close(release=True)
    except CoadaptError as error:
        log.error("%s", error)
        return TRY_AGAIN
    except OSError as error:
        log.error("cannot continue: %s", error)
        return TRY_AGAIN
    return 0


def main() -> None:
    """Runs the controller; a user error is one line, an internal error a traceback."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m coadapt.live.controller_process HOME [NAME]")
    from coadapt.errors import CoadaptError
    from coadapt.store.home import Home

    try:
        code = run(Home(sys.argv[1]), *sys.argv[2:])
    except CoadaptError as error:
        # without time and level, because the supervisor repeats it to the user
        sys.stderr.write(f"{error}\n")
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()

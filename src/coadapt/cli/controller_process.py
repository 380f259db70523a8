"""``python -m coadapt.cli.controller_process HOME``: the controller as ``coadapt serve`` starts it.

Exit codes: 0 told to end; 2 what ``serve.json`` says is wrong; 75 try again (the lease is another's, the store cannot be written,
the keeper does not answer); 1 our own error.
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
    from coadapt.cluster.controller import Controller
    from coadapt.cluster.home import Home
    from coadapt.model import JobSpec, Node
    from coadapt.scheduler import Scheduler
    from coadapt.wire.serve import ServeOptions

log = logging.getLogger("coadapt.controller")
TRY_AGAIN = 75


def nodes_of(options: ServeOptions) -> tuple[Node, ...]:
    """What the keeper offers: virtual nodes, or this machine's GPUs or cores."""
    import msgspec

    from coadapt.cli.compose import cluster_of
    from coadapt.cluster.devices import this_machine
    from coadapt.errors import InputError

    if options.virtual:
        return cluster_of(options.virtual).nodes
    nodes = this_machine()
    if options.gpus == "auto":
        return nodes
    there = sum(node.gpus for node in nodes)
    if not options.gpus.isdigit() or not 1 <= int(options.gpus) <= there:
        raise InputError(
            f"--gpus {options.gpus!r} must be auto or a number from 1 to {there}, which this machine has"
        )
    left, offered = int(options.gpus), []
    for node in nodes:
        taken = min(node.gpus, left)
        left -= taken
        if taken:
            offered.append(msgspec.structs.replace(node, gpus=taken))
    return tuple(offered)


def scheduler_of(options: ServeOptions) -> Scheduler:
    """Policy, placer and rhythm as told."""
    from coadapt.cli.families import PLACERS
    from coadapt.cli.policy_options import make_policy
    from coadapt.scheduler import FittedCurves, Scheduler

    policy = make_policy(options.policy, options.options)
    return Scheduler(
        policy,
        PLACERS.load(options.placement or policy.placer)(),
        curves=FittedCurves(method=getattr(policy, "predictor", "ours")),
        interval_s=options.interval_s,
        min_interval_s=options.min_interval_s,
        seed=options.seed,
    )


def agents_of(home: Home) -> Callable[[str], tuple[str, str]]:
    """Where a job's agents report to, and by which token; asked at every start, for the address may change."""
    from coadapt.server.secret_files import secret_of
    from coadapt.wire.job_token import job_token

    key = secret_of(home.path / "job_key")

    def agent_of(job: str) -> tuple[str, str]:
        try:
            address = home.address.read_text().strip()
        except OSError:
            return "", ""  # they print, and the keeper reads
        return address, job_token(key, job)

    return agent_of


def make(home: Home, options: ServeOptions) -> Controller:
    """Everything joined; takes the lease."""
    from coadapt.cluster.controller import Controller
    from coadapt.cluster.local import LocalExecutor
    from coadapt.cluster.watchdog import Watchdog
    from coadapt.scheduler import saved
    from coadapt.store import open_store

    nodes, scheduler, agent_of = nodes_of(options), scheduler_of(options), agents_of(home)
    store = open_store(home.store(options))
    events = store.log()

    def connect(spec_of: Callable[[str], JobSpec]) -> LocalExecutor:
        return LocalExecutor(
            home.keeper,
            log=events.identity,
            spec_of=spec_of,
            nodes=nodes,
            home=home.path,
            agent_of=agent_of,
            grace_s=options.grace_s,
        )

    return Controller(
        events,
        store.inbox(),
        scheduler,
        connect,
        home=home.identity,
        saver=saved,
        watchdog=Watchdog(factor=options.hang_factor, least_s=options.hang_least_s),
        retain_s=None if options.retain_days is None else 86400.0 * options.retain_days,
    )


def run(home: Home) -> int:
    """Until SIGTERM; the exit code."""
    from coadapt.errors import CoadaptError
    from coadapt.model import ControllerStarted

    options = home.read_options()
    # what is wrong there is wrong for ever, and must not be tried again and again
    nodes_of(options)
    policy = type(scheduler_of(options).policy).__name__
    started = ControllerStarted(
        version=version("coadapt"), policy=policy, options=dict(options.options), seed=options.seed
    )
    controller = None
    told: list[int] = []

    def stop(number: int, frame: Any) -> None:
        told.append(number)
        if controller is not None:
            controller.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        controller = make(home, options)
        if told:
            controller.stop()
        controller.run(started)
        controller.close(release=True)
    except CoadaptError as error:
        log.error("%s", error)
        return TRY_AGAIN
    except OSError as error:
        log.error("cannot go on: %s", error)
        return TRY_AGAIN
    return 0


def main() -> None:
    """One line for what the user can mend, a traceback for what we must."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if len(sys.argv) != 2:
        sys.exit("usage: python -m coadapt.cli.controller_process HOME")
    from coadapt.cluster.home import Home
    from coadapt.errors import CoadaptError

    try:
        code = run(Home(sys.argv[1]))
    except CoadaptError as error:
        # as the user shall read it: without the time, for the supervisor repeats it
        sys.stderr.write(f"{error}\n")
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()

"""A standby: waits until the controller that holds the lease is gone or hangs, then takes over.

A controller that does not renew its lease for ``LEASE_S`` has lost it, however alive its process looks: whoever takes the
lease begins a new epoch, and the store and the executor refuse the old one from then on. A holder that stands still *inside*
a transaction keeps every other writer from the store, too. If it runs on this machine it is killed, since nothing but its
end frees the store; elsewhere the database server ends its transaction.

``stand_by`` is ``coadapt serve --standby``: a supervisor with one such controller. When the first supervisor ends, it becomes
the first, and starts the API.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from coadapt.errors import InputError, StoreError
from coadapt.executors.node.processes import is_gone
from coadapt.live.child_lives import Lives, read_lives, write_lives
from coadapt.live.connect import home_flag
from coadapt.live.supervisor import Child, Supervisor, locked
from coadapt.model.lease import Holder
from coadapt.runtime.controller import LEASE_S
from coadapt.store import Store
from coadapt.store.home import Home

log = logging.getLogger(__name__)

NAME = "standby"
#: Seconds between two looks at the lease, and that a transaction may take before its holder is killed.
_LOOK_S, _BLOCKED_S = 0.5, 3.0


def wait_for_lease(store: Store, advanced: Callable[[], None], stopped: Callable[[], bool]) -> bool:
    """Waits until the lease of the store can be taken; False if it was ``stopped`` before.

    Args:
        store: the store.
        advanced: called at every look: waiting is progress.
        stopped: whether to wait no longer.
    """
    said = False
    with closing(store.log()) as events:
        while not stopped():
            advanced()
            try:
                holder = events.holder()
            except StoreError as error:
                # nobody can take over meanwhile
                log.warning("%s", error)
                time.sleep(_LOOK_S)
                continue
            if holder is None or is_gone(holder.owner):
                return True
            if holder.age_s > LEASE_S:
                log.warning(
                    "%s has not renewed its lease for %.0f s; taking over", holder.owner, holder.age_s
                )
                if not store.writable(_BLOCKED_S):
                    _kill(holder)
                return True
            if not said:
                log.info("standing by: %s is at work", holder.owner)
                said = True
            time.sleep(_LOOK_S)
    return False


def _kill(holder: Holder) -> None:
    """Kills a holder on this machine that blocks the store. It has lost its lease, so nothing is lost with it."""
    host, _, pid, _ = holder.owner.split("/")
    if host == socket.gethostname() and not is_gone(holder.owner):
        log.error("%s blocks the store and is killed", holder.owner)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(pid), signal.SIGKILL)


def stand_by(home: Home, say: Callable[[str], None], child_of: Callable[[str, str], Child]) -> None:
    """Runs a standby for the cluster in ``home`` until SIGTERM or Ctrl-C.

    Args:
        home: home directory of a cluster that was served before.
        say: called with messages for the user.
        child_of: makes the child process that runs a part (controller, api) under a name.
    """
    options = home.read_options()
    refusal = f"a standby is already running in {home.path} (process {{pid}})"
    with ExitStack() as place:
        place.enter_context(locked(home.standby_lock, refusal))
        write_lives(home.children, read_lives(home.children) | {NAME: Lives()})
        supervisor = Supervisor(
            [child_of("controller", NAME)], say, liveness_s=options.liveness_s, lives_file=home.children
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: supervisor.stop())
        say(
            f"Standing by for the cluster in {home.path}. It takes over when the controller there ends or hangs."
        )
        promotion = _Promotion(home, supervisor, place, say, child_of)
        supervisor.run(promotion)
        if promotion.done:
            home.address.unlink(missing_ok=True)


class _Promotion:
    """Makes the standby the first supervisor once there is no other: it then holds ``serve.lock`` and runs the API."""

    def __init__(
        self,
        home: Home,
        supervisor: Supervisor,
        place: ExitStack,
        say: Callable[[str], None],
        child_of: Callable[[str, str], Child],
    ) -> None:
        self._home, self._supervisor, self._place, self._say = home, supervisor, place, say
        self._child_of = child_of
        self.done = False

    def __call__(self) -> None:
        if self.done:
            return
        lock = ExitStack()
        try:
            lock.enter_context(locked(self._home.lock, "{pid}"))
        except InputError:
            return
        # another standby may wait from now on
        self._place.pop_all().close()
        self._place.enter_context(lock)
        self._home.address.unlink(missing_ok=True)
        # the API ends before the controller
        self._supervisor.children = [self._child_of("api", "api"), *self._supervisor.children]
        self.done = True
        flag = home_flag(self._home)
        self._say(
            f"The first supervisor has ended; this one is the first now. To stop everything: coadapt down{flag}"
        )

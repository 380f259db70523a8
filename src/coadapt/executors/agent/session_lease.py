"""The agent's lease: how long replicas may go on while nobody answers, and what ends them when it has run out.

It counts CLOCK_BOOTTIME, so that a machine which was suspended does not wake up believing. The thread that ends replicas reads
``/proc`` and sends signals; it takes no lock and touches no file of the agent's, which may lie on storage that hangs.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

from coadapt.executors.agent.api_link import boot_time_s
from coadapt.executors.node.keeper_shutdown import leftovers
from coadapt.executors.node.processes import signal_each

log = logging.getLogger(__name__)
_LOOK_S = 0.1


class Lease:
    """Ends all processes of the given tokens when it runs out, and then this process.

    Args:
        lease_s: seconds that it lasts after the last request that was answered had been sent.
        grace_s: seconds from SIGTERM to SIGKILL.
        tokens: returns the tokens that mark processes of attempts; called without a lock.
        exit_code: of this process, when it has run out.
    """

    def __init__(
        self, lease_s: float, grace_s: float, *, tokens: Callable[[], Iterable[str]], exit_code: int
    ) -> None:
        self._lease_s, self._grace_s = lease_s, grace_s
        self._tokens, self._exit_code = tokens, exit_code
        self._until = boot_time_s() + lease_s
        #: From now on nothing may be started.
        self.expired = False

    def start(self) -> None:
        """Begins to watch."""
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renewed(self, sent_at: float) -> None:
        """Notes that a request sent at ``sent_at`` was answered. Comes too late once the lease has run out."""
        self._until = max(self._until, sent_at + self._lease_s)

    def _watch(self) -> None:
        while (left_s := self._until - boot_time_s()) > 0:
            time.sleep(min(left_s, _LOOK_S))
        self.expired = True
        log.error("nobody has answered for %g s: all replicas end", self._lease_s)
        self.end_all()
        os._exit(self._exit_code)

    def end_all(self) -> None:
        """Ends every process of the tokens: SIGTERM, the grace time, SIGKILL; returns when none is left."""
        self.expired = True
        end_processes(self._tokens, self._grace_s)


def end_processes(tokens: Callable[[], Iterable[str]], grace_s: float) -> None:
    """Ends every process that carries one of the tokens; returns when none is left."""
    kill_at = boot_time_s() + grace_s
    asked: set[int] = set()
    while left := leftovers(list(tokens())):
        if boot_time_s() >= kill_at:
            signal_each(left, signal.SIGKILL)
        else:
            signal_each(set(left) - asked, signal.SIGTERM)
            asked |= set(left)
        time.sleep(_LOOK_S)

"""All attempts on one machine, with their devices and stores. Commands in, reports out.

Single-threaded, and never blocks: its host calls ``do`` with commands, ``reap`` when a child may have ended, and
``poll`` now and then. In the keeper the host is the host of the gangs itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from coadapt.executors.gang.messages import Command, Report
from coadapt.executors.node.attempt import NodeAttempt
from coadapt.executors.node.devices import Devices
from coadapt.executors.node.node_files import NodeFiles
from coadapt.executors.node.oom_watch import OomWatch
from coadapt.executors.node.rendezvous_stores import Stores
from coadapt.model import Measured, Node
from coadapt.wire.launch import Launch

#: How often remaining helpers of a replica are looked for, once it is gone.
_LOOK_AGAIN_S = 0.05

Key = tuple[str, int]


class NodeAgent:
    """``nodes`` are this machine's, ``virtual`` ones have no hardware of their own."""

    def __init__(self, files: NodeFiles, *, nodes: Sequence[Node], virtual: Sequence[Node]) -> None:
        self._files, self._devices = files, Devices(nodes, virtual=virtual)
        self._oom, self._stores = OomWatch(), Stores(files.keeper)
        self._attempts: dict[Key, NodeAttempt] = {}

    def admit(self, key: Key, launch: Launch, token: str) -> None:
        """Commands for this attempt will follow; ``token``, which is written down, will mark all its processes."""
        self._attempts[key] = NodeAttempt(
            *key,
            launch,
            token,
            files=self._files,
            devices=self._devices,
            stores=self._stores,
            oom=self._oom,
        )

    def forget(self, key: Key) -> None:
        """Forgets an attempt that has ended."""
        self._attempts.pop(key, None)

    def attempt(self, key: Key) -> NodeAttempt:
        """Returns an attempt that was admitted."""
        return self._attempts[key]

    def unled(self) -> list[tuple[Key, NodeAttempt]]:
        """Attempts with leaders that are not written down yet."""
        return [(key, attempt) for key, attempt in self._attempts.items() if attempt.unled]

    def directories(self) -> set[Path]:
        """Directories that replicas write to."""
        return {attempt.logs for attempt in self._attempts.values()}

    def do(self, key: Key, command: Command, now: float) -> list[Report]:
        """Carries out a command; what is known at once."""
        return self._attempts[key].do(command, now)

    def reap(self) -> list[tuple[Key, Report]]:
        """Takes note of every child that exited, orphans of replicas included."""
        found: list[tuple[Key, Report]] = []
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return found
            if child is None:
                return found
            ended = self._exited(child.si_pid)
            if ended is not None:
                found.append(ended)
            elif not self._stores.exited(child.si_pid):
                os.waitpid(child.si_pid, 0)

    def _exited(self, pid: int) -> tuple[Key, Report] | None:
        now = time.monotonic()
        for key, attempt in self._attempts.items():
            report = attempt.exited(pid, now)
            if report is not None:
                return key, report
        return None

    def poll(self, now: float) -> list[tuple[Key, Report]]:
        """Returns reports of changes that no signal announces."""
        in_use = [attempt.store for attempt in self._attempts.values() if attempt.store is not None]
        self._stores.poll(now, in_use)
        return [(key, report) for key, attempt in self._attempts.items() for report in attempt.poll(now)]

    def listen(self, now: float) -> list[Measured]:
        """Returns what replicas have reported since the last call."""
        self._oom.look(now)
        return [measured for key in self._attempts for measured in self.last_words(key, now)]

    def last_words(self, key: Key, now: float) -> list[Measured]:
        """Returns what one attempt has reported since the last call."""
        job, number = key
        found = self._attempts[key].measurements(now)
        return [Measured(job=job, attempt=number, measurement=each) for each in found]

    def patience_s(self, now: float) -> float | None:
        """Returns the seconds until ``poll`` is needed; None: not before something else happens."""
        times = [at - now for each in self._attempts.values() if (at := each.next_at) is not None]
        if any(attempt.impatient for attempt in self._attempts.values()):
            times.append(_LOOK_AGAIN_S)
        return min(times, default=None)

    def close(self) -> None:
        """Ends the stores, after all attempts have ended."""
        self._stores.close()

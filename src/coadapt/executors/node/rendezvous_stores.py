"""The rendezvous stores of replicas: ``python -m coadapt.torch.elastic.rendezvous_process``, one for each interpreter
that jobs use.

The keeper does not import PyTorch; it talks to a store in lines (docs/agent-protocol.md) and never blocks on it. A
store dies with its keeper, and ends when no attempt has used it for a while.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from coadapt.executors.node.accounts import Account
from coadapt.executors.node.environment import cleaned
from coadapt.executors.node.processes import Confinement, dies_with

log = logging.getLogger(__name__)
#: Idle seconds after which a store ends; seconds after which one that could not be started is tried again.
_IDLE_S, _TRY_AGAIN_S = 600.0, 600.0
_READ = 1 << 16


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a store; the first holds its ``port``."""

    ok: bool = True
    port: int = 0
    there: bool = False
    why: str = ""


class Store:
    """One process. ``address`` is empty until it listens at ``host``; ``gone`` from its end on."""

    def __init__(
        self,
        command: list[str],
        envs: Mapping[str, str],
        errors: Path,
        host: str = "127.0.0.1",
        account: Account | None = None,
    ) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self.address, self.gone, self.idle_since = "", False, 0.0
        self._asked: deque[Callable[[StoreAnswer], None]] = deque()
        self._rest = self._unsent = b""
        owner = None if account is None else (account.uid, account.gid, account.groups)
        confined = Confinement(account=owner)
        with errors.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                env=dict(envs),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                cwd="/" if account is not None else None,
                preexec_fn=dies_with(os.getpid(), confined),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for end in (self._in, self._out):
            os.set_blocking(end, False)

    @property
    def pid(self) -> int:
        """Process id of the store."""
        return self._process.pid

    @property
    def awaits_answer(self) -> bool:
        """Whether a question is not answered yet."""
        return bool(self._asked)

    def ask(self, question: Mapping[str, Any], then: Callable[[StoreAnswer], None]) -> None:
        """Sends a request; a later ``poll`` calls ``then`` with the answer, unless the store dies."""
        self._asked.append(then)
        self._unsent += msgspec.json.encode(question) + b"\n"
        self._send()

    def poll(self) -> None:
        """Reads answers that have arrived."""
        self._send()
        while not self.gone:
            try:
                data = os.read(self._out, _READ)
            except BlockingIOError:
                return
            if not data:
                return  # its end will be reaped
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._hear(line)

    def kill(self) -> None:
        """Kills the process of the store."""
        if not self.gone:
            self._process.kill()

    def ended(self) -> None:
        """Notes that the process was reaped."""
        self._process.wait()
        self.gone, self.address = True, ""
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()

    def _hear(self, line: bytes) -> None:
        try:
            answer = msgspec.json.decode(line, type=StoreAnswer)
        except msgspec.DecodeError:
            log.warning("unexpected line from a rendezvous store: %.200r", line)
            return
        if answer.port:
            self.address = f"{self._host}:{answer.port}"
        elif self._asked:
            self._asked.popleft()(answer)

    def _send(self) -> None:
        try:
            while self._unsent and not self.gone:
                self._unsent = self._unsent[os.write(self._in, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # it is gone; its end will be reaped


class Stores:
    """The rendezvous stores of one keeper, by interpreter and account; replicas reach them at ``host``."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        self._log, self._host = directory / "store.log", host
        self._stores: dict[tuple[str, str], Store] = {}
        self._not_before: dict[tuple[str, str], float] = {}

    def of(
        self, interpreter: str, envs: Mapping[str, str], now: float, account: Account | None = None
    ) -> Store | None:
        """Returns the store of an interpreter, starting it if needed; None if it cannot be started now.

        Args:
            interpreter: a program that the job chose, so the store runs as the job does.
            envs: of the job.
            now: the present time.
            account: that the job runs as; None: that of this process.
        """
        key = (interpreter, "" if account is None else account.name)
        found = self._stores.get(key)
        if found is not None and not found.gone:
            found.idle_since = now
            return found
        if now < self._not_before.get(key, now):
            return None
        self._not_before[key] = now + _TRY_AGAIN_S
        python = {name: value for name, value in envs.items() if name.startswith(("PYTHON", "LD_"))}
        try:
            made = Store(
                [interpreter, "-m", "coadapt.torch.elastic.rendezvous_process", "--host", self._host],
                {**cleaned(), **python, **({} if account is None else account.environment)},
                self._log,
                self._host,
                account,
            )
        except OSError as error:
            log.warning(
                "cannot start a rendezvous store with %s; its jobs are resized by restart: %s",
                interpreter,
                error,
            )
            return None
        made.idle_since = now
        self._stores[key] = made
        return made

    def poll(self, now: float, in_use: Collection[Store]) -> None:
        """Reads answers of all stores; kills stores that were idle for too long."""
        for key, store in list(self._stores.items()):
            store.poll()
            if store.address:
                self._not_before.pop(key, None)
            if store in in_use:
                store.idle_since = now
            elif now - store.idle_since > _IDLE_S:
                store.kill()

    @property
    def pids(self) -> set[int]:
        """Processes of the stores."""
        return {store.pid for store in self._stores.values()}

    def exited(self, pid: int) -> bool:
        """Whether the process was a store; it is reaped then."""
        for key, store in self._stores.items():
            if store.pid == pid:
                store.ended()
                del self._stores[key]
                return True
        return False

    def close(self) -> None:
        """Ends all stores when the keeper ends."""
        for store in self._stores.values():
            store.kill()
            store.ended()
        self._stores.clear()

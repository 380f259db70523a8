"""What happens between steps: a stop, a checkpoint, a resize in place, a new memory limit; each at a step all agree on."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from coadapt.errors import CoadaptError
from coadapt.torch import history
from coadapt.torch.checkpoints import Checkpoints
from coadapt.torch.group import Group
from coadapt.torch.notices import Notice, Notices
from coadapt.torch.state import State, copied
from coadapt.torch.training import Training

log = logging.getLogger(__name__)
#: Exit code of a replica whose state is saved and which may be started again.
SAVED_AND_LEFT = 143


class Elastic:
    """Owns the notices and the checkpoints of a job."""

    def __init__(
        self, training: Training, state: State, checkpoints: Checkpoints | None, *, every_s: float
    ) -> None:
        self.training, self.state, self.checkpoints, self.every_s = training, state, checkpoints, every_s
        self.notices: Notices | None = None
        #: Seconds of what is not training, by kind, since the last report.
        self.overheads_s: dict[str, float] = {}
        self._saved_at = time.monotonic()
        self._terminated = False
        self._before: Any = None

    def listen(self) -> None:
        """From now on SIGTERM means: save and leave; SIGUSR1: show where every thread is."""
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL and sys.__stderr__ is not None:
            faulthandler.register(signal.SIGUSR1, file=sys.__stderr__)  # a keeper asks so what hangs
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._told)

    def deafen(self) -> None:
        """Training is over: SIGTERM means what it meant before."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None
        if self.notices is not None:
            self.notices.close()

    def start(self, group: Group) -> None:
        """A generation begins."""
        if self.notices is not None:
            self.notices.close()
        self.notices = Notices(group, self.training.ledger, self.training.plain)
        if self._terminated:
            self.notices.ask(Notice(kind="stop"))

    def _told(self, number: int, frame: object) -> None:
        self._terminated = True
        if self.notices is None:
            # nothing was trained yet, so there is nothing to save
            sys.exit(SAVED_AND_LEFT)
        self.notices.ask(Notice(kind="stop"))

    def due(self) -> Notice | None:
        """What all have agreed to do now."""
        assert self.notices is not None
        notice = self.notices.due(self.training.ledger.step)
        if notice is None and self.checkpoints is not None and self.training.group.place.first:
            late = time.monotonic() - self._saved_at > self.every_s
            if late and not self.notices.asked:
                self._saved_at = time.monotonic()
                self.notices.ask(Notice(kind="checkpoint"))
        return notice

    @property
    def calm_s(self) -> float:
        """Seconds until there may be something to do between steps; 0 if there is now."""
        if self.notices is None or self.notices.pending:
            return 0.0
        if self.checkpoints is None or not self.training.group.place.first:
            return math.inf
        return self._saved_at + self.every_s - time.monotonic()

    def save(self, *, wait: bool, fatal: bool = False) -> None:
        """A checkpoint of this moment; all replicas call it together. In the background unless ``wait``.

        Where it fails training goes on; if ``fatal``, all replicas raise.
        """
        if self.checkpoints is None:
            return
        began = time.perf_counter()
        state = self.state.gather()
        failure = ""
        if state is not None:
            try:
                self._commit(state, wait)
            except CoadaptError as error:
                failure = str(error)
        self._saved_at = time.monotonic()
        self.overheads_s["checkpoint"] = time.perf_counter() - began
        if wait:
            # nobody leaves before it is committed
            failure = self.training.group.from_first(failure)
        if failure:
            if fatal:
                raise CoadaptError(f"{failure}; the work since the last checkpoint is lost")
            log.error("%s; training goes on", failure)

    def _commit(self, state: dict[str, Any], wait: bool) -> None:
        assert self.checkpoints is not None
        step = self.training.ledger.step
        if wait:
            self.checkpoints.save(step, state)
        else:
            self.checkpoints.save_soon(step, copied(state))
        try:
            history.save(self.checkpoints.directory / "history.jsonl", self.training.history.entries)
        except OSError as error:
            raise CoadaptError(f"cannot save the history: {error.strerror}") from error

    def stop(self) -> None:
        """Saves and leaves."""
        if self.checkpoints is None and self.training.group.place.first:
            log.warning("told to stop; there is no checkpoint directory, so the work is lost")
        self.save(wait=True, fatal=True)
        if self.training.group.place.first:
            log.info("stopped after step %d", self.training.ledger.step)
        leave(self.training.group)


def leave(group: Group) -> None:
    """Ends this process as one whose state is saved."""
    # others leave at the same moment: taking the group apart while their ends vanish has been seen to abort the process
    group.abandon()
    sys.stdout.flush()
    sys.exit(SAVED_AND_LEFT)


def directory_for(given: str | os.PathLike[str] | None) -> Path | None:
    """Where checkpoints go: as asked by the script, else as the scheduler says; None: nowhere."""
    where = given if given is not None else os.environ.get("COADAPT_CHECKPOINTS", "")
    return Path(where) if where else None

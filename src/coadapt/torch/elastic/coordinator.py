"""Coordination between steps: stop, checkpoint, resize and memory limit, each at a step that all replicas agree on."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coadapt.errors import CoadaptError
from coadapt.torch.elastic.checkpoints import Checkpoints
from coadapt.torch.elastic.notices import Notice, Notices
from coadapt.torch.elastic.process_group import Group
from coadapt.torch.elastic.training_state import TrainingState, copied
from coadapt.torch.training import decision_history
from coadapt.torch.training.replica_training import ReplicaTraining
from coadapt.wire.agent import SAVED_AND_LEFT, Variable

log = logging.getLogger(__name__)


class Coordinator:
    """Owns the notices, the checkpoints and the signal handlers of a replica. ``TrainingLoop`` calls it between steps."""

    def __init__(
        self,
        training: ReplicaTraining,
        state: TrainingState,
        checkpoints: Checkpoints | None,
        *,
        every_s: float,
    ) -> None:
        """``state`` of ``training`` is saved in ``checkpoints`` (None: nowhere) every ``every_s`` seconds."""
        self.training, self.state, self.checkpoints, self.every_s = training, state, checkpoints, every_s
        self.notices: Notices | None = None
        #: Seconds spent on other things than training, by kind, since the last report.
        self.overheads_s: dict[str, float] = {}
        self._saved_at = time.monotonic()
        self._terminated = False
        self._previous_handler: Any = None
        #: Whether a stop needs no further step.
        self.at_rest: Callable[[], bool] = lambda: False

    def install_signal_handlers(self) -> None:
        """On SIGTERM save and exit; on SIGUSR1 print the stack of every thread."""
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL and sys.__stderr__ is not None:
            faulthandler.register(
                signal.SIGUSR1, file=sys.__stderr__
            )  # a keeper uses it to show where a replica hangs
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)

    @property
    def terminated(self) -> bool:
        """Whether SIGTERM has arrived."""
        return self._terminated

    def close(self) -> None:
        """Training is over: restore the handler of SIGTERM and stop watching for notices."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None
        if self.notices is not None:
            self.notices.close()

    def start_generation(self, group: Group) -> None:
        """Watch for notices to the replicas of ``group``."""
        if self.notices is not None:
            self.notices.close()
        self.notices = Notices(group, self.training.ledger, self.training.plain)
        if self._terminated:
            self.notices.request(Notice(kind="stop"))

    def _on_sigterm(self, number: int, frame: object) -> None:
        self._terminated = True
        if self.notices is None:
            # nothing was trained yet: there is nothing to save
            sys.exit(SAVED_AND_LEFT)
        self.notices.request(Notice(kind="stop"))
        if self.at_rest():
            # the script is between two epochs, perhaps for long, and the state is saved: nothing to wait for
            self.notices.announce()
            if self.checkpoints is not None:
                self.checkpoints.wait()
            leave(self.training.group)

    def due(self) -> Notice | None:
        """The notice that all replicas have agreed to act on after this step; None if there is none."""
        assert self.notices is not None
        notice = self.notices.due(self.training.ledger.step)
        if notice is None and self.checkpoints is not None and self.training.group.place.first:
            late = time.monotonic() - self._saved_at > self.every_s
            if late and not self.notices.requested:
                self._saved_at = time.monotonic()
                self.notices.request(Notice(kind="checkpoint"))
        return notice

    @property
    def idle_s(self) -> float:
        """Seconds until there may be something to do between steps; 0 if there is now."""
        if self.notices is None or self.notices.pending:
            return 0.0
        if self.checkpoints is None or not self.training.group.place.first:
            return math.inf
        return self._saved_at + self.every_s - time.monotonic()

    def save(self, *, wait: bool, fatal: bool = False) -> None:
        """Save a checkpoint; all replicas call it together. It is written in the background unless ``wait``.

        If it fails, training continues; with ``fatal`` all replicas raise.
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
            # no replica exits before the checkpoint is committed
            failure = self.training.group.from_first(failure)
        if failure:
            if fatal:
                raise CoadaptError(f"{failure}; work since the last checkpoint is lost")
            log.error("%s; training continues", failure)

    def _commit(self, state: dict[str, Any], wait: bool) -> None:
        assert self.checkpoints is not None
        step = self.training.ledger.step
        if wait:
            self.checkpoints.save(step, state)
        else:
            self.checkpoints.save_in_background(step, copied(state))
        try:
            decision_history.save(self.checkpoints.directory / "history.jsonl", self.training.history.entries)
        except OSError as error:
            raise CoadaptError(f"cannot save history.jsonl: {error.strerror}") from error

    def stop(self) -> None:
        """Save and exit."""
        if self.checkpoints is None and self.training.group.place.first:
            log.warning(
                "stopping without a checkpoint directory: all work is lost; set init(checkpoints=...)"
            )
        self.save(wait=True, fatal=True)
        if self.training.group.place.first:
            log.info("stopped after step %d", self.training.ledger.step)
        leave(self.training.group)


def leave(group: Group) -> None:
    """Exit with the code of a replica that has saved its state."""
    # others exit at the same moment: destroying the group while its peers vanish has been seen to abort the process
    group.abandon()
    sys.stdout.flush()
    sys.exit(SAVED_AND_LEFT)


def directory_for(given: str | os.PathLike[str] | None) -> Path | None:
    """The directory of checkpoints: ``given`` by the script, else by the scheduler; None: nowhere."""
    where = given if given is not None else os.environ.get(Variable.CHECKPOINTS, "")
    return Path(where) if where else None

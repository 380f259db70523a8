"""``python -m coadapt.cli.forward_process HOME``: answers what takes simulating or folding anew; see ``wire.forward``.

Started by the API, of lower priority than everything else, and gone with it: its standard input ends.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coadapt.cluster.home import Home
    from coadapt.scheduler import Scheduler, SchedulerState
    from coadapt.server.follower import Follower
    from coadapt.store.log import SqlLog
    from coadapt.wire.forward import Ask, Told
    from coadapt.wire.serve import ServeOptions

log = logging.getLogger("coadapt.forward")


class Answers:
    """Follows the log on its own, so that a question costs what is new."""

    def __init__(self, home: Home) -> None:
        from coadapt.server.follower import Follower
        from coadapt.server.services import newest_state
        from coadapt.store import open_store

        self.options: ServeOptions = home.read_options()
        self._log: SqlLog = open_store(home.store(self.options)).log()
        self._follower: Follower = Follower(self._log, newest_state(self._log))

    def of(self, question: Ask) -> Any:
        """The answer, as plain data can be made of it."""
        from coadapt.simulate.forward import forward, preview
        from coadapt.wire.forward import AskEta, AskWhy

        if isinstance(question, AskWhy):
            return self._why(question.job, question.at)
        while self._follower.refresh(force=True):
            pass
        state = self._follower.state
        if isinstance(question, AskEta):
            return forward(state, self._scheduler, now=self._follower.now)
        return preview(state, self._scheduler, question.spec, question.sizes, now=self._follower.now)

    def _scheduler(self, state: SchedulerState) -> Scheduler:
        from coadapt.cli.controller_process import scheduler_of

        scheduler = scheduler_of(self.options)
        scheduler.state = state
        return scheduler

    def _why(self, job: str, at: float) -> Any:
        """The log folded up to then; from a snapshot that is old enough, if there is one."""
        from coadapt.errors import InputError
        from coadapt.scheduler.why import why

        state = _state_before(self._log, at)
        for record in self._log.read(state.seq):
            if record.at > at:
                break
            state.apply(record)
        if job not in state.jobs:
            raise InputError(f"job {job!r} had not been submitted then")
        return why(state, job, at)


def _state_before(events: SqlLog, at: float) -> SchedulerState:
    from coadapt.errors import InputError, SavedStateError
    from coadapt.scheduler import SchedulerState, saved

    found = events.newest_snapshot()
    while found is not None:
        seq, data = found
        try:
            state = saved.load(data)
            if state.now <= at:
                return state
        except SavedStateError:
            pass  # of another version: the log has it all
        found = events.newest_snapshot(before=seq)
    if events.first() > 0:
        raise InputError("the log of that time has been forgotten")
    return SchedulerState()


def told(answers: Answers, line: bytes) -> Told:
    """One answer; a fault of ours ends the process, and the API starts another."""
    import msgspec

    from coadapt.errors import InputError
    from coadapt.wire.forward import Ask, Told

    try:
        return Told(answer=msgspec.Raw(msgspec.json.encode(answers.of(msgspec.json.decode(line, type=Ask)))))
    except InputError as error:
        return Told(error=str(error))


def main() -> None:
    """Reads questions until there are no more."""
    import msgspec

    from coadapt.cluster.home import Home
    from coadapt.server.forward import READY

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.nice(5)
    answers = Answers(Home(sys.argv[1]))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(told(answers, line)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

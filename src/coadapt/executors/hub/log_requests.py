"""Requests for output that lies on other machines: who asked, which agents were asked, and what came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coadapt.executors.agent.session_messages import FindLog, LogFound, LogRead, ReadLog

#: Seconds that agents have to answer.
PATIENCE_S = 10.0


class LogRequest:
    """One question, to every session that may have the output."""

    def __init__(self, find: FindLog, sessions: Sequence[str], now: float) -> None:
        self.find, self.until = find, now + PATIENCE_S
        self.open = set(sessions)
        self.found: LogFound | None = None

    def answer(self, session: str, read: LogRead) -> None:
        """Takes what a session has; the first that has something decides."""
        self.open.discard(session)
        if self.found is None and (read.part is not None or not self.open):
            self.found = LogFound(part=read.part)

    def look(self, now: float, names: Mapping[str, str]) -> LogFound | None:
        """Returns the answer, if there is one by now; ``names``: the machines of sessions that are there."""
        self.open &= set(names)
        if self.found is None and not self.open:
            self.found = LogFound()
        if self.found is None and now >= self.until:
            self.found = LogFound(unreachable=", ".join(sorted(names[each] for each in self.open)))
        return self.found


class LogRequests:
    """All questions that are open."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, LogRequest] = {}
        #: What each session still has to be asked.
        self._unasked: dict[str, list[ReadLog]] = {}

    def ask(self, find: FindLog, sessions: Sequence[str], now: float) -> int:
        """Opens a question; returns its number."""
        self._last += 1
        self._open[self._last] = LogRequest(find, sessions, now)
        for session in sessions:
            read = ReadLog(
                number=self._last,
                job=find.job,
                attempt=find.attempt,
                rank=find.rank,
                stream=find.stream,
                offset=find.offset,
                limit=find.limit,
            )
            self._unasked.setdefault(session, []).append(read)
        return self._last

    def waits(self, session: str) -> bool:
        """Whether a session has to be asked something."""
        return session in self._unasked

    def take(self, session: str) -> tuple[ReadLog, ...]:
        """Returns what a session is to be asked now; each question once, since nothing depends on an answer."""
        return tuple(self._unasked.pop(session, ()))

    def answered(self, session: str, reads: Sequence[LogRead]) -> None:
        """Takes answers of a session."""
        for read in reads:
            if read.number in self._open:
                self._open[read.number].answer(session, read)

    def result(self, number: int, now: float, names: Mapping[str, str]) -> LogFound | None:
        """Returns the answer to a question, once there is one; the question is closed then."""
        found = self._open[number].look(now, names)
        if found is not None:
            del self._open[number]
        return found

    def close(self, number: int) -> None:
        """Forgets a question whose asker is gone."""
        self._open.pop(number, None)

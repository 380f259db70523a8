"""What ``coadapt watch`` says of a log: kept the first time and at every new age, judged when the log is complete.

The truth is told by the log's own clock, not by ours: a log may be looked at long after its last line was written. A prediction
remembers its mark, the number of readings before it and the log's clock there; whoever reads the same log again, from its
beginning, passes the mark at the same time by that clock. If not, another run has been written to the file since, and
the prediction is left as it is. Where the log tells no time, only the process that saw its lines arrive can judge.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coadapt.predict import Estimate
from coadapt.report import age_of

if TYPE_CHECKING:
    from coadapt.cli.kept import Kept
    from coadapt.predict.log_progress import LogState
    from coadapt.store.predictions import Prediction

METHOD = "pace"


class LogPredictions:
    """Of one log, from its first line on."""

    def __init__(self, log: str, kept: Kept) -> None:
        self._kept = kept
        self._pipe = log == "-"
        self._subject = log if self._pipe else str(Path(log).resolve())
        self.begin()

    def begin(self) -> None:
        """The log is read from its beginning: once more, or because it was written anew."""
        #: Of earlier looks at this file, by their marks; perhaps of another run.
        self._earlier: dict[int, list[Prediction]] = {}
        for each in [] if self._pipe else self._kept.waiting(self._subject):
            if each.mark is not None:
                self._earlier.setdefault(each.mark, []).append(each)
        #: Of this run: when each was made, by the log's clock; and the ages it was said at.
        self._made_s: dict[int, float] = {}
        self._ages: set[str] = set()

    def passed(self, state: LogState) -> None:
        """A line was read; was something said here before?"""
        if not self._earlier:
            return
        for each in self._earlier.pop(_readings(state), ()):
            if math.isclose(each.mark_s or 0.0, state.clock_s, rel_tol=1e-9, abs_tol=1e-6):
                self._made_s[each.id] = state.clock_s
                self._ages.add(age_of(each.done))

    def shown(self, state: LogState, answer: dict[str, Any]) -> int | None:
        """The answer is being shown: keeps it if it is news, and gives its id; judges all before it if it is the end."""
        if answer["total"] is not None and answer["done"] == answer["total"]:
            if self._made_s:
                self._kept.learn({number: state.clock_s - at for number, at in self._made_s.items()})
                self._made_s.clear()
            return None
        age = age_of(answer["share"])
        if answer["eta_s"] is None or age in self._ages:
            return None
        self._ages.add(age)
        left = Estimate(value=answer["eta_s"], low=answer["eta_low_s"], high=answer["eta_high_s"])
        number = self._kept.keep(
            self._subject,
            METHOD,
            left,
            done=answer["share"],
            mark=_readings(state),
            mark_s=state.clock_s,
        )
        if number is not None:
            self._made_s[number] = state.clock_s
        return number


def _readings(state: LogState) -> int:
    return sum(state.forms.values())

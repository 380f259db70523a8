"""What one line of a training log tells, and the contract of a format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from coadapt.model import Fact


class Reading(Fact, frozen=True):
    """The content of one line. Counts are as the log writes them; values that are not in the line are None."""

    #: The format, as ``watch`` names it.
    form: str
    epoch: float | None = None
    epochs: float | None = None
    step: int | None = None
    steps: int | None = None
    #: True: ``step`` counts over the whole run, not within an epoch.
    overall: bool = False
    #: Over the whole run.
    samples: float | None = None
    total_samples: float | None = None
    tokens: float | None = None
    total_tokens: float | None = None
    #: Share of the run done.
    share: float | None = None
    #: When the line was written, by the log's own clock.
    stamp_s: float | None = None
    #: Since the run began.
    run_s: float | None = None
    #: Since the epoch (or the bar) began.
    elapsed_s: float | None = None
    #: The whole epoch took.
    epoch_s: float | None = None
    #: One step takes.
    step_s: float | None = None
    #: Since the line before.
    span_s: float | None = None
    #: A time whose meaning the line does not tell: of a step (or an epoch), or since the run began.
    time_s: float | None = None
    samples_per_s: float | None = None
    #: Seconds to the end of the run, as the log predicts them itself.
    left_s: float | None = None
    #: Samples of a step.
    batch: float | None = None
    #: A bar's label: several bars may run at a time.
    label: str = ""
    validation: bool = False
    #: The line stands at the end of its epoch.
    epoch_end: bool = False
    #: The line says that the run has ended.
    ended: bool = False
    metrics: dict[str, float] = {}


class LogFormat(Protocol):
    """One format of training logs. An instance reads one log; it may keep what later lines depend on (a table's header)."""

    name: ClassVar[str]
    #: Texts of which one is in each line of the format; without any, each line is tried.
    marks: ClassVar[tuple[str, ...]]

    def parse(self, line: str) -> Reading | None:
        """Read a line (stripped, without terminal escapes, bounded in length); None if it is not of this format.

        Must not raise, whatever the line.
        """


class RecordFormat(LogFormat, Protocol):
    """A format of binary records instead of lines."""

    def sniff(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` has this format."""

    def records(self, data: bytes) -> tuple[Sequence[Reading], bytes]:
        """Read the whole records in ``data``; also returns the bytes of the last one if it is incomplete."""

"""What was said about the future, so that it can be compared with what came."""

from __future__ import annotations

from coadapt.model._base import Fact


class Forecast(Fact, frozen=True):
    """Seconds until a job ends, from the moment it is said, with its 80% interval."""

    left_s: float
    low_s: float
    #: None: it may never end.
    high_s: float | None
    #: What it rests on: "declared", "course", "pool", "attained", or the name of the tool that said it.
    method: str = ""
    #: Share of the job's work that was done; None where that is not known.
    done: float | None = None

"""What the parts of ``why`` hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from coadapt.scheduler.holders import Holder


class Said(NamedTuple):
    """A sentence, its code and numbers; ``decided``: it is the reason that the last decision about the job recorded."""

    code: str
    sentence: str
    numbers: Mapping[str, float] = {}
    next: str = ""
    holders: tuple[Holder, ...] = ()
    decided: bool = False

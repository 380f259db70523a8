"""timm: ``Train: 0 [  50/1251 (  4%)]  Loss: 6.95 (6.95)  Time: 0.321s, 441.2/s  (0.512s, 2000.1/s)  LR: 1e-06``."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import COUNT, NUMBER, count, metrics, stamp
from coadapt.prediction.training_log.reading import Reading

_LINE = re.compile(rf"\bTrain: {COUNT} \[\s{{0,8}}{COUNT}/{COUNT}\s{{1,3}}\(\s{{0,3}}\d{{1,3}}%\)\]")
#: The value in parentheses is the mean since the epoch began.
_TIME = re.compile(rf"\bTime: {NUMBER}s,\s{{1,6}}{NUMBER}/s\s{{0,4}}(?:\(\s{{0,4}}{NUMBER}s,)?")


class Timm:
    """Reads lines of timm's training script."""

    name: ClassVar[str] = "timm"
    order: ClassVar[int] = 25
    marks: ClassVar[tuple[str, ...]] = ("Train: ",)

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        found = _LINE.search(line)
        if not found:
            return None
        time = _TIME.search(line)
        step = count(found[2])
        return Reading(
            form="timm",
            epoch=float(count(found[1])),
            step=step,
            steps=count(found[3]) or None,
            elapsed_s=float(time[3]) * (step + 1) if time and time[3] else None,
            step_s=float(time[1]) if time else None,
            stamp_s=stamp(line),
            metrics=metrics(line[found.end() :]),
        )

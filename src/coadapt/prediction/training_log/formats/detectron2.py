"""detectron2: ``[01/02 12:00:00 d2.utils.events]:  eta: 1:02:03  iter: 5300  total_loss: 0.5  time: 0.33``; maskrcnn-benchmark alike."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import CLOCK, COUNT, NUMBER, count, metrics, seconds, stamp
from coadapt.prediction.training_log.reading import Reading

_LINE = re.compile(rf"\beta: {CLOCK}\s{{1,8}}iter:\s{{1,8}}{COUNT}\s")
_TIME = re.compile(rf"\btime: {NUMBER}\b")


class Detectron2:
    """Reads lines of detectron2's CommonMetricPrinter."""

    name: ClassVar[str] = "detectron2"
    order: ClassVar[int] = 13
    marks: ClassVar[tuple[str, ...]] = ("iter:",)

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        found = _LINE.search(line)
        if not found:
            return None
        time = _TIME.search(line, found.end())
        return Reading(
            form="detectron2",
            step=count(found[2]),
            overall=True,
            left_s=seconds(found[1]),
            step_s=float(time[1]) if time else None,
            stamp_s=stamp(line),
            metrics=metrics(line[found.end() :]),
        )

"""torchvision's references, DETR, DeiT, MAE: ``Epoch: [0]  [ 340/4572]  eta: 0:29:23  loss: 1.2 (1.4)  time: 0.39``; and PyTorch's ImageNet example: ``Epoch: [0][ 10/5005] Time 0.12 (0.4)``."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import (
    CLOCK,
    COUNT,
    NUMBER,
    UNIT_S,
    VALIDATION,
    count,
    metrics,
    seconds,
    stamp,
)
from coadapt.prediction.training_log.reading import Reading

_LINE = re.compile(
    rf"\b(?:epoch|train)\b(?: epoch)?:?\s{{0,4}}\[?\s{{0,4}}{COUNT}\]?:?\s{{0,4}}\[\s{{0,8}}{COUNT}\s{{0,3}}/\s{{0,3}}{COUNT}(?:\s\(\s{{0,3}}\d{{1,3}}%\))?\]",
    re.I,
)
_TEST = re.compile(
    rf"\b(?:test|val\w*|eval\w*):?\s{{0,4}}(?:\[\s{{0,4}}\d{{1,9}}\])?\s{{0,4}}\[\s{{0,8}}{COUNT}\s{{0,3}}/\s{{0,3}}{COUNT}\]",
    re.I,
)
_TIME = re.compile(rf"\btime:?\s{{1,4}}{NUMBER}\s?(us|ms|s)?\b", re.I)
_BATCH_TIME = re.compile(rf"\bbatch\s{NUMBER}\s\(", re.I)
_TOTAL = re.compile(rf"\bEpoch:? \[{COUNT}\] Total time: {CLOCK}")


class Torchvision:
    """Reads ``Epoch: [0]  [ 340/4572]`` and relatives."""

    name: ClassVar[str] = "torchvision"
    order: ClassVar[int] = 30
    marks: ClassVar[tuple[str, ...]] = (
        "poch: [",
        "poch:[",
        "poch [",
        "poch: ",
        "rain: ",
        "est: ",
        "al: ",
        "est:  [",
    )

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if found := _TOTAL.search(line):
            return Reading(
                form="torchvision",
                epoch=float(count(found[1])),
                epoch_s=seconds(found[2]),
                epoch_end=True,
                stamp_s=stamp(line),
            )
        both = _LINE.search(line)
        test = None if both else _TEST.search(line)
        if both is None and test is None:
            return None
        time = _TIME.search(line) or _BATCH_TIME.search(line)
        step_s = float(time[1]) * UNIT_S[time[2] if time.re is _TIME else None] if time else None
        if both is None:
            assert test is not None
            return Reading(
                form="torchvision",
                step=count(test[1]),
                steps=count(test[2]) or None,
                step_s=step_s,
                stamp_s=stamp(line),
                validation=True,
                label="test",
                metrics=metrics(line),
            )
        return Reading(
            form="torchvision",
            epoch=float(count(both[1])),
            step=count(both[2]),
            steps=count(both[3]) or None,
            step_s=step_s,
            stamp_s=stamp(line),
            validation=bool(VALIDATION.match(line)),
            metrics=metrics(line[both.end() :]),
        )

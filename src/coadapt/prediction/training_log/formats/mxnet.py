"""MXNet, GluonCV and GluonNLP: ``[Epoch 0][Batch 9], Speed: 61.7 samples/sec``, ``Epoch[0] Batch [99]``, ``[Epoch 3] Training cost: 277.0``, ``[step 499] loss=1.8 time=172.90``."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import COUNT, NUMBER, count, metrics, stamp
from coadapt.prediction.training_log.reading import Reading

_BATCH = re.compile(
    rf"\[?\bEpoch\s?\[?{COUNT}\]?\s{{0,2}}\[?\s?Batch\s?\[?\s{{0,6}}{COUNT}(?:\s?/\s?{COUNT})?\]"
)
_EPOCH = re.compile(rf"(?:\[Epoch {COUNT}\]|\bEpoch\s?\[{COUNT}\])")
_ITERATION = re.compile(rf"\bEpoch {COUNT},? iteration {COUNT}/{COUNT}:")
_STEP = re.compile(rf"\[step {COUNT}\]\s{{1,4}}(?=\S{{1,60}}=)")
_ALONE = re.compile(rf"\[Batch {COUNT}/{COUNT}\]")
_SPEED = re.compile(rf"\bspeed:\s{{0,2}}{NUMBER}\s?samples/s", re.I)
_COST = re.compile(rf"(?:\b(?:training cost|time cost|time):?\s?=?\s?{NUMBER}|\bover {NUMBER} secs)", re.I)


class MXNet:
    """Reads lines of MXNet's Speedometer and the scripts of GluonCV and GluonNLP."""

    name: ClassVar[str] = "mxnet"
    order: ClassVar[int] = 8
    marks: ClassVar[tuple[str, ...]] = ("poch[", "[Epoch ", "[step ", "[Batch ", "iteration ", "poch [")

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if found := _BATCH.search(line) or _ITERATION.search(line):
            speed = _SPEED.search(line)
            return Reading(
                form="MXNet",
                epoch=float(count(found[1])),
                step=count(found[2]),
                steps=count(found[3]) or None if found[3] else None,
                samples_per_s=float(speed[1]) if speed and float(speed[1]) > 0 else None,
                stamp_s=stamp(line),
                metrics=metrics(line[found.end() :]),
            )
        if found := _STEP.search(line):
            cost = _COST.search(line)
            return Reading(
                form="MXNet",
                step=count(found[1]),
                overall=True,
                span_s=float(cost[1]) if cost and cost[1] else None,
                stamp_s=stamp(line),
                metrics=metrics(line[found.end() :]),
            )
        if found := _EPOCH.search(line):
            cost = _COST.search(line, found.end())
            found_metrics = metrics(line[found.end() :])
            if cost is None and not found_metrics:
                return None
            return Reading(
                form="MXNet",
                epoch=float(count(found[1] or found[2])),
                epoch_s=float(cost[1] or cost[2]) if cost else None,
                epoch_end=cost is not None,
                stamp_s=stamp(line),
                validation=cost is None and "alidation" in line,
                metrics=found_metrics,
            )
        if found := _ALONE.search(line):
            # a batch line without an epoch, beside those with one, is that of an evaluation
            return Reading(
                form="MXNet",
                step=count(found[1]),
                steps=count(found[2]) or None,
                stamp_s=stamp(line),
                validation=True,
                label="evaluation",
            )
        return None

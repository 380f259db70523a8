"""DeepSpeed: ``steps: 10 loss: 9.1 iter time (s): 0.9 samples/sec: 17.1`` and ``epoch=0/micro_step=100/global_step=100, RunningAvgSamplesPerSec=...``."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import COUNT, NUMBER, count, metrics, stamp
from coadapt.prediction.training_log.reading import Reading

_STEPS = re.compile(rf"\bsteps: {COUNT} loss: \S{{1,24}} iter time \(s\): {NUMBER} samples/sec: {NUMBER}")
_TIMER = re.compile(
    rf"\bepoch={COUNT}/micro_step={COUNT}/global_step={COUNT}, RunningAvgSamplesPerSec={NUMBER}"
)
_RANK = re.compile(rf"\[Rank 0\] step={COUNT}, skipped=")


class DeepSpeed:
    """Reads lines of DeepSpeed's engine and timer."""

    name: ClassVar[str] = "deepspeed"
    order: ClassVar[int] = 11
    marks: ClassVar[tuple[str, ...]] = ("iter time (s)", "global_step=", "[Rank 0] step=")

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if found := _STEPS.search(line):
            step_s, per_s = float(found[2]), float(found[3])
            return Reading(
                form="DeepSpeed",
                step=count(found[1]),
                overall=True,
                step_s=step_s,
                samples_per_s=per_s,
                stamp_s=stamp(line),
                metrics={name: value for name, value in metrics(line).items() if name == "loss"},
            )
        if found := _TIMER.search(line):
            return Reading(
                form="DeepSpeed",
                step=count(found[3]),
                overall=True,
                samples_per_s=float(found[4]),
                stamp_s=stamp(line),
            )
        if found := _RANK.search(line):
            return Reading(form="DeepSpeed", step=count(found[1]), overall=True, stamp_s=stamp(line))
        return None

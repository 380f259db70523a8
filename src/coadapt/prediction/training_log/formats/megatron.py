"""Megatron-LM: ``iteration 100/ 500000 | consumed samples: 25600 | elapsed time per iteration (ms): 1234.5 | global batch size: 256 | lm loss: 7.1E+00``."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import COUNT, NUMBER, count, metrics, stamp
from coadapt.prediction.training_log.reading import Reading

_LINE = re.compile(rf"\biteration\s{{1,12}}{COUNT}\s{{0,2}}/\s{{0,12}}{COUNT}\s{{0,2}}\|")
_SAMPLES = re.compile(rf"\bconsumed samples:\s{{0,16}}{COUNT}")
_STEP = re.compile(rf"\belapsed time per iteration \(ms\):\s{{0,8}}{NUMBER}")
_BATCH = re.compile(rf"\bglobal batch size:\s{{0,8}}{COUNT}")


class Megatron:
    """Reads lines of Megatron-LM."""

    name: ClassVar[str] = "megatron"
    order: ClassVar[int] = 10
    marks: ClassVar[tuple[str, ...]] = ("iteration",)

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        found = _LINE.search(line)
        if not found:
            return None
        samples, step, batch = _SAMPLES.search(line), _STEP.search(line), _BATCH.search(line)
        tail = {
            name: value
            for name, value in metrics(line[found.end() :]).items()
            if name not in ("samples", "size")
        }
        return Reading(
            form="Megatron-LM",
            step=count(found[1]),
            steps=count(found[2]) or None,
            overall=True,
            samples=float(count(samples[1])) if samples else None,
            step_s=float(step[1]) / 1000 if step else None,
            batch=float(count(batch[1])) if batch else None,
            stamp_s=stamp(line),
            metrics=tail,
        )

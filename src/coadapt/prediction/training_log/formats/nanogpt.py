"""nanoGPT (``iter 100: loss 2.3, time 132.22ms, mfu 3.1%``), modded-nanogpt (``step:1962/6200 train_loss:3.58 train_time:422604ms step_avg:216.50ms``) and llm.c (``step 1/19560 | train loss 11.0 | 3605.01 ms``)."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import COUNT, NUMBER, UNIT_S, count, metrics
from coadapt.prediction.training_log.reading import Reading

_MODDED = re.compile(rf"\bstep:{COUNT}/{COUNT}\s")
_TRAIN_TIME = re.compile(rf"\btrain_time:{NUMBER}(ms|s)\b")
_ITER = re.compile(rf"^iter {COUNT}: loss \S{{1,24}}, time {NUMBER}(ms|s)\b")
_LLMC = re.compile(rf"^step\s{{1,8}}{COUNT}/{COUNT} \| .{{1,160}}\| {NUMBER} ms \|")
_COMMA = re.compile(r"(?<=\d),(?=\s)")


class NanoGPT:
    """Reads lines of nanoGPT and its relatives."""

    name: ClassVar[str] = "nanogpt"
    order: ClassVar[int] = 9
    marks: ClassVar[tuple[str, ...]] = ("step:", "iter ", "step ")

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if found := _MODDED.search(line):
            clock = _TRAIN_TIME.search(line, found.end())
            if clock is None:
                return None
            return Reading(
                form="nanoGPT",
                step=count(found[1]),
                steps=count(found[2]) or None,
                overall=True,
                run_s=float(clock[1]) * UNIT_S[clock[2]],
                metrics=metrics(line[found.end() : clock.start()]),
            )
        if found := _ITER.match(line):
            step_s = float(found[2]) * UNIT_S[found[3]]
            return Reading(
                form="nanoGPT",
                step=count(found[1]),
                overall=True,
                step_s=step_s,
                metrics=metrics(_COMMA.sub("", line)),
            )
        if found := _LLMC.match(line):
            return Reading(
                form="nanoGPT",
                step=count(found[1]),
                steps=count(found[2]) or None,
                overall=True,
                step_s=float(found[3]) / 1000,
                metrics=metrics(line),
            )
        return None

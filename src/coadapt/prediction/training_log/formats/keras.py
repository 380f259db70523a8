"""Keras: ``Epoch 3/90``, then ``390/390 [====] - 12s 31ms/step - loss: 0.3`` (or its newer bar)."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import COUNT, NUMBER, UNIT_S, count, metrics
from coadapt.prediction.training_log.reading import Reading

_LINE = re.compile(
    rf"^{COUNT}/{COUNT}\s(?:\[[=>.\s]{{0,60}}\]|\S{{1,60}})?\s{{0,4}}(?:-\s)?(?:ETA:\s)?(?:{NUMBER}(us|ms|s|m|h)|(\d{{1,3}}):(\d\d))"
    rf"(?:\s{NUMBER}(us|ms|s)/(?:step|epoch|sample))?"
)
_HEAD = re.compile(rf"^Epoch {COUNT}/{COUNT}$")


class Keras:
    """Reads lines of Keras' progress bar."""

    name: ClassVar[str] = "keras"
    order: ClassVar[int] = 20
    marks: ClassVar[tuple[str, ...]] = ("/step", "/epoch", "/sample", "Epoch ", "[==", "[=>")

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if found := _HEAD.match(line):
            return Reading(form="Keras", epoch=float(count(found[1])), epochs=float(count(found[2])))
        found = _LINE.match(line)
        if not found or count(found[2]) == 0:
            return None
        step, steps = count(found[1]), count(found[2])
        told = "/step" in line or "[=" in line
        if not told and not found[7]:
            return None
        step_s = float(found[7]) * UNIT_S[found[8]] if found[7] else None
        elapsed = float(found[3]) * UNIT_S[found[4]] if found[3] else None
        if step < steps:
            # while an epoch is under way, this is the time left of it
            elapsed = None
        return Reading(
            form="Keras",
            step=step,
            steps=steps,
            elapsed_s=elapsed,
            step_s=step_s,
            label="keras",
            metrics=metrics(line[found.end() :]),
        )

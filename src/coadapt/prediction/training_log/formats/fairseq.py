"""fairseq: ``epoch 002:    100 / 487 loss=7.1, ups=3.4, num_updates=587, wall=180``, and the same as JSON."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.formats._mapping import first, mapping, numbers, whole
from coadapt.prediction.training_log.patterns import COUNT, NUMBER, count, metrics, stamp
from coadapt.prediction.training_log.reading import Reading

_LINE = re.compile(rf"\bepoch {COUNT}:\s{{1,12}}{COUNT} / {COUNT}\s")
_UPDATES = re.compile(rf"\bnum_updates[= ]{COUNT}")
_WALL = re.compile(rf"[, |]wall[= ]{NUMBER}")


class Fairseq:
    """Reads lines of fairseq's simple and JSON progress."""

    name: ClassVar[str] = "fairseq"
    order: ClassVar[int] = 12
    marks: ClassVar[tuple[str, ...]] = (" / ", "num_updates")

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if '"num_updates"' in line:
            return self._json(line)
        found = _LINE.search(line)
        if not found:
            return None
        updates, wall = _UPDATES.search(line), _WALL.search(line)
        return Reading(
            form="fairseq",
            epoch=float(count(found[1])),
            step=count(found[2]),
            steps=count(found[3]) or None,
            run_s=float(wall[1]) if wall else None,
            stamp_s=stamp(line),
            validation="| valid" in line,
            # updates are fewer than batches where gradients are accumulated; they are a metric, not the counter
            metrics=metrics(line[found.end() :])
            | ({"num_updates": float(count(updates[1]))} if updates else {}),
        )

    def _json(self, line: str) -> Reading | None:
        said = mapping(line)
        if said is None or "epoch" not in said:
            return None
        return Reading(
            form="fairseq",
            step=whole(said, "num_updates"),
            overall=True,
            run_s=first(said, "wall", "train_wall"),
            stamp_s=stamp(line[: line.find("{")]),
            validation='"valid_loss"' in line,
            metrics=numbers(said),
        )

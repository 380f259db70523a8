"""mmengine and mmcv: ``Epoch(train)  [1][ 50/391]  lr: 1e-02  eta: 1:02:03  time: 0.33``, ``Iter(train) [50/40000] ...``, and their JSON lines."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.formats._mapping import first, mapping, numbers, whole
from coadapt.prediction.training_log.patterns import CLOCK, COUNT, NUMBER, count, metrics, seconds, stamp
from coadapt.prediction.training_log.reading import Reading

_EPOCH = re.compile(
    rf"\bEpoch\s?\(?(train|val|test)?\)?\s{{1,4}}\[\s{{0,6}}{COUNT}\]\[\s{{0,8}}{COUNT}/\s{{0,8}}{COUNT}\]"
)
_ITER = re.compile(rf"\bIter\s?\(?(train|val|test)?\)?\s{{1,4}}\[\s{{0,8}}{COUNT}/\s{{0,8}}{COUNT}\]")
_ETA = re.compile(rf"\beta: {CLOCK}")
_TIME = re.compile(rf"\btime: {NUMBER}")


class MMEngine:
    """Reads text and JSON logs of mmengine and mmcv."""

    name: ClassVar[str] = "mmengine"
    order: ClassVar[int] = 14
    marks: ClassVar[tuple[str, ...]] = ("Epoch(", "Epoch [", "Iter(", "Iter [", '"iter"')

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if '"iter"' in line:
            return self._json(line)
        eta, time = _ETA.search(line), _TIME.search(line)
        if eta is None and time is None:
            return None
        found = _EPOCH.search(line)
        over = None if found else _ITER.search(line)
        if found is None and over is None:
            return None
        both = Reading(
            form="mmengine",
            left_s=seconds(eta[1]) if eta else None,
            step_s=float(time[1]) if time else None,
            stamp_s=stamp(line),
            metrics=metrics(line),
        )
        from msgspec.structs import replace

        if found:
            where = {
                "epoch": float(count(found[2])),
                "step": count(found[3]),
                "steps": count(found[4]) or None,
            }
            return replace(both, validation=found[1] in ("val", "test"), **where)
        assert over is not None
        where = {"step": count(over[2]), "steps": count(over[3]) or None, "overall": True}
        return replace(both, validation=over[1] in ("val", "test"), **where)

    def _json(self, line: str) -> Reading | None:
        said = mapping(line)
        if said is None or "iter" not in said:
            return None
        overall = whole(said, "step")
        return Reading(
            form="mmengine",
            epoch=first(said, "epoch"),
            step=whole(said, "iter") if overall is None else overall,
            overall=overall is not None or "epoch" not in said,
            step_s=first(said, "time"),
            validation=said.get("mode") in ("val", "test"),
            metrics=numbers(said),
        )

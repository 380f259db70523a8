"""Our own lines: ``COADAPT {"progress": 0.25, "time": 12.5}``."""

from __future__ import annotations

from typing import ClassVar

from coadapt.model.measurement import PREFIX
from coadapt.prediction.training_log.formats._mapping import first, mapping, whole
from coadapt.prediction.training_log.patterns import value_of
from coadapt.prediction.training_log.reading import Reading


class CoadaptLine:
    """Reads ``COADAPT {json}``."""

    name: ClassVar[str] = "coadapt"
    order: ClassVar[int] = 0
    marks: ClassVar[tuple[str, ...]] = (PREFIX,)

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if not line.startswith(PREFIX):
            return None
        said = mapping(line)
        if said is None:
            return None
        nested = said.get("metrics")
        given = nested if isinstance(nested, dict) else {}
        metrics = {str(k): v for k, v in ((k, value_of(v)) for k, v in given.items()) if v is not None}
        if isinstance(said.get("metric"), str) and (value := value_of(said.get("value"))) is not None:
            metrics[said["metric"]] = value
        share, step, epoch = first(said, "progress"), whole(said, "step"), first(said, "epoch")
        if share is not None and not 0 <= share <= 1:
            share = None
        if share is None and step is None and epoch is None:
            return None
        return Reading(
            form="COADAPT",
            share=share,
            epoch=epoch,
            epochs=first(said, "epochs"),
            step=step,
            steps=whole(said, "steps"),
            overall=True,
            stamp_s=first(said, "time"),
            epoch_s=first(said, "epoch_s"),
            step_s=first(said, "step_time", "step_s"),
            batch=first(said, "batch", "batch_size"),
            metrics=metrics,
        )

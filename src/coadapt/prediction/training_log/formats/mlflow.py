"""MLflow: a metric's file in ``mlruns`` (``1700000000000 0.53 10``: milliseconds, value, step), and rows of ``mlflow.search_runs``."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import value_of
from coadapt.prediction.training_log.reading import Reading

_ROW = re.compile(r"^(1\d{12}) (-?[\d.eE+-]{1,30}|nan|inf|-inf) (\d{1,15})$")


class MLflow:
    """Reads a metric's file of MLflow."""

    name: ClassVar[str] = "mlflow"
    order: ClassVar[int] = 4
    marks: ClassVar[tuple[str, ...]] = ("1",)

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        found = _ROW.match(line)
        value = value_of(found[2]) if found else None
        if found is None or value is None:
            return None
        return Reading(
            form="MLflow",
            step=int(found[3]),
            overall=True,
            stamp_s=int(found[1]) / 1000,
            metrics={"value": value},
        )

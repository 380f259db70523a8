"""Pass times of options that accumulate gradients, from a forecast that knows plain steps only.

With s extra backward passes of m examples on each of k replicas a step takes s T_grad(m) + T(m, k): only the last pass is followed by
synchronisation. T_grad is what one replica alone takes. In seconds of a pass over the data, P(batch, replicas) without accumulation:

    P_s = (s P(m, 1) / k + P(m k, k)) / (s + 1)

An option that was itself measured is taken as it was.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from coadapt.configure.outlook import Columns, Forecast, Passes
from coadapt.configure.problem import Option
from coadapt.predict._base import FloatArray


class AccumulatedForecast:
    """Implements ``Forecast``. ``measured``: (GPU type, batch, replicas) whose pass time was seen."""

    def __init__(self, plain: Forecast, measured: Collection[tuple[str, int, int]] = ()) -> None:
        self._plain, self._measured = plain, frozenset(measured)

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        seconds, sd = self._plain.pass_s(columns)
        some = np.array(
            [i for i, option in enumerate(columns.options) if self._split(option)], dtype=np.int64
        )
        if not some.size:
            return seconds, sd
        options = [columns.options[i] for i in some]
        parts = np.array([option.accumulation + 1 for option in options], dtype=np.float64)
        local = np.array(
            [math.ceil(o.batch / o.replicas / (o.accumulation + 1)) for o in options], dtype=np.float64
        )
        replicas = columns.replicas[some]
        alone, alone_sd = self._plain.pass_s(
            _at(columns, some, local, np.ones(len(some)), np.ones(len(some)))
        )
        synced, synced_sd = self._plain.pass_s(
            _at(columns, some, local * replicas, replicas, columns.nodes[some])
        )
        # a step with synchronisation is not shorter than one without
        alone = np.minimum(alone / replicas, synced)
        seconds, sd = seconds.copy(), sd.copy()
        seconds[some] = ((parts - 1) * alone + synced) / parts
        sd[some] = np.maximum(alone_sd, synced_sd)
        return seconds, sd

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``."""
        return self._plain.passes_to(target, batch)

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``."""
        return self._plain.passes_for(epochs, batch)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``."""
        return self._plain.metric_after(batch, passes)

    def _split(self, option: Option) -> bool:
        return (
            bool(option.accumulation)
            and (option.gpu_type, option.batch, option.replicas) not in self._measured
        )


def _at(
    columns: Columns, some: npt.NDArray[np.int64], batch: FloatArray, replicas: FloatArray, nodes: FloatArray
) -> Columns:
    return Columns(
        options=[columns.options[i] for i in some],
        gpu_type=columns.gpu_type[some],
        replicas=replicas,
        nodes=nodes,
        batch=batch,
        price_s=columns.price_s[some],
    )

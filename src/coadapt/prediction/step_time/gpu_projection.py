"""Step time on a GPU type that a job was not measured on, or only with one GPU, from one that it was.

    T_B(n, K, m, s) = T_A(n, K, m, s) / speed        speed = throughput of one B over that of one A

as in Sia (Jayaram Subramanya et al., SOSP 2023): what was learned of the scaling on one type is kept, and only the
speed exchanged. The network is scaled with it: leaving it as it was measured on A, for it does not know the GPU, was
worse (docs/looks/mixed.md), since nodes with faster GPUs have faster links. The speed is the best that is known:

1. one GPU of B was measured by the job itself: at the batch sizes measured there;
2. one GPU of each was profiled before (``one_gpu``: examples per second, by type);
3. the datasheets of both (``model.hardware``): geometric mean of the ratios of fp32 peak and memory bandwidth;
4. nothing: 1, the same speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from coadapt.errors import UnknownNameError
from coadapt.model.hardware import find_gpu
from coadapt.prediction.step_time._base import FittedStepTime
from coadapt.prediction.step_time.step_table import StepTimeTable

Basis = Literal["measured", "profiled", "datasheet", "nothing"]
#: Scatter of log step times that a projection adds, by where its speed comes from (docs/looks/mixed.md).
SCATTER: dict[Basis, float] = {"measured": 0.4, "profiled": 0.45, "datasheet": 0.55, "nothing": 1.2}


class Speed(NamedTuple):
    """Speed of one GPU relative to another, and the source of that figure."""

    ratio: float
    basis: Basis


def source_of(table: StepTimeTable, target: str) -> str | None:
    """The type to project to ``target`` from: measured with the most replicas, then in the most ways, then by name.

    None where ``target`` itself was measured with as many: its own measurements then say more.
    """
    known: dict[str, tuple[int, int]] = {}
    for row in table.rows:
        most, ways = known.get(row.gpu_type, (0, 0))
        known[row.gpu_type] = (max(most, row.replicas), ways + 1)
    own, _ = known.pop(target, (0, 0))
    source = min(known, key=lambda name: (-known[name][0], -known[name][1], name), default=None)
    return source if source is not None and known[source][0] > own else None


def speed(
    table: StepTimeTable,
    source: str,
    target: str,
    params: FittedStepTime,
    one_gpu: Mapping[str, float] | None = None,
) -> Speed:
    """Speed of one GPU of type ``target`` relative to one of type ``source``.

    Args:
        table: Measurements of the job.
        source: GPU type that the job was measured on.
        target: GPU type to project to.
        params: The job's fit on ``source``.
        one_gpu: Profiled examples per second of one GPU, by type.
    """
    logs = [
        math.log(float(params.step_time(1, 1, row.atomic_batch)) / row.fit_step_s)
        for row in table.rows
        if row.gpu_type == target and row.replicas == 1
    ]
    if logs:
        return Speed(math.exp(sum(logs) / len(logs)), "measured")
    known = one_gpu or {}
    if known.get(source, 0.0) > 0 and known.get(target, 0.0) > 0:
        return Speed(known[target] / known[source], "profiled")
    return datasheet_speed(source, target)


def datasheet_speed(source: str, target: str) -> Speed:
    """Speed of one GPU of type ``target`` relative to one of type ``source``, from datasheets alone."""
    try:
        one, other = find_gpu(source), find_gpu(target)
    except UnknownNameError:
        return Speed(1.0, "nothing")
    compute = other.fp32_tflops / one.fp32_tflops
    return Speed(math.sqrt(compute * other.bandwidth_gb_s / one.bandwidth_gb_s), "datasheet")


def project(params: FittedStepTime, by: Speed) -> FittedStepTime:
    """``params`` on a GPU ``by.ratio`` times as fast; the interval is wider, for nothing there was measured."""
    return params.projected(by.ratio, SCATTER[by.basis])

"""Step time on a GPU type that a job never ran on, from one that it did.

    T_B(n, K, m, s) = T_A(n, K, m, s) / speed        speed = throughput of one B over that of one A

as in Sia (Jayaram Subramanya et al., SOSP 2023, section 3.3): what was learned of the scaling on one type is kept, and
only the speed is exchanged. The speed comes from the best source there is:

1. one GPU of B was measured by the job itself: at the batch sizes measured there;
2. one GPU of both types was profiled before (``one_gpu``, examples per second by type);
3. the datasheets of both (``hardware``): geometric mean of the ratios of peak fp32 rate and memory bandwidth;
4. nothing: 1, the same speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from coadapt.errors import UnknownNameError
from coadapt.predict import step_time
from coadapt.predict.hardware import find_gpu
from coadapt.predict.step_published import StepTimeParams
from coadapt.predict.step_terms import GAMMA
from coadapt.predict.step_time import AnyParams, StepTimeTable

Basis = Literal["measured", "profiled", "datasheet", "nothing"]
#: Scatter of log times that a projection adds, by where its speed comes from.
SCATTER: dict[Basis, float] = {"measured": 0.2, "profiled": 0.25, "datasheet": 0.5, "nothing": 0.8}


class Speed(NamedTuple):
    """How many times as fast one GPU is as another, and how that is known."""

    ratio: float
    basis: Basis


def source_of(table: StepTimeTable, target: str) -> str | None:
    """The type to project from: measured with the most replicas, then the most often, then by name; not ``target``."""
    seen: dict[str, tuple[int, int]] = {}
    for row in table.rows:
        if row.gpu_type != target:
            most, count = seen.get(row.gpu_type, (0, 0))
            seen[row.gpu_type] = (max(most, row.replicas), count + 1)
    return max(sorted(seen), key=lambda name: seen[name], default=None)


def speed(
    table: StepTimeTable,
    source: str,
    target: str,
    params: AnyParams,
    one_gpu: Mapping[str, float] | None = None,
) -> Speed:
    """Of one GPU of type ``target`` over one of ``source``; ``params`` are those fitted on ``source``."""
    logs = [
        math.log(float(step_time.step_time(params, 1, 1, row.atomic_batch)) / row.fit_step_s)
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
    """The same from datasheets alone."""
    try:
        one, other = find_gpu(source), find_gpu(target)
    except UnknownNameError:
        return Speed(1.0, "nothing")
    compute = other.fp32_tflops / one.fp32_tflops
    memory = other.bandwidth_gb_s / one.bandwidth_gb_s
    return Speed(math.sqrt(compute * memory), "datasheet")


def project(params: AnyParams, by: Speed) -> AnyParams:
    """``params`` as they would be on a GPU that is ``by.ratio`` times as fast; wider, for nothing there was measured."""
    if isinstance(params, StepTimeParams):
        names = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r")
        times = {name: getattr(params, name) / by.ratio for name in names}
        return replace(params, **times, scatter=math.hypot(params.scatter, SCATTER[by.basis]))
    shift = math.log(by.ratio)
    theta = tuple(value - shift if i < GAMMA else value for i, value in enumerate(params.theta))
    return replace(params, theta=theta)

"""What a script reports, averaged over replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from coadapt.errors import InputError
from coadapt.torch.group import Group


def averaged(group: Group, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Means over replicas; a pair (sum, count) is averaged exactly, however unevenly examples were divided."""
    names, pairs = sorted(metrics), []
    for name in names:
        value = metrics[name]
        total, count = value if isinstance(value, tuple) else (value, 1)
        pairs += [_number(name, total), _number(name, count)]
    sums = group.sum(pairs)
    return {n: sums[2 * i] / sums[2 * i + 1] if sums[2 * i + 1] else 0.0 for i, n in enumerate(names)}


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach()) if isinstance(value, Tensor) else float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"job.report({name}=...): {value!r:.60} is not a number") from error

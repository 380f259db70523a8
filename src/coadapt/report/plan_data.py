"""A plan as plain data with stable keys: ``coadapt plan --json``, ``planned.to_dict()``."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from coadapt.report.planned import Planned, told


def plain(planned: Planned) -> dict[str, Any]:
    """Everything; numbers that are infinite or not known are None, for JSON has neither."""
    plan, question = planned.plan, planned.plan.question
    rows = [_row(planned, i) for i in range(len(plan.rows))]
    found: dict[str, Any] = _finite(
        {
            "feasible": plan.chosen is not None,
            "planner": plan.planner,
            "metric_name": planned.metric,
            "target": question.target,
            "deadline_s": question.deadline_s,
            "deadline": planned.due(),
            "cost_unit": planned.unit,
            "confidence": question.confidence,
            "stops_at_target": question.stops,
            "chosen": None if plan.chosen is None else rows[plan.chosen],
            "nearest": rows[plan.likeliest],
            "binding": list(plan.binding),
            "relaxations": msgspec.to_builtins(plan.relaxations),
            "short_run": None
            if plan.short_run is None
            else {**rows[plan.short_run.row], "saves": plan.short_run.saves, "likely": plan.short_run.likely},
            "frontier": [rows[i] for i in plan.frontier],
            "rows": rows,
            "run": planned.command(),
            "submit": planned.submission(),
            "notes": list(planned.notes),
        }
    )
    return found


def _row(planned: Planned, i: int) -> dict[str, Any]:
    row = planned.plan.rows[i]
    # every key, also where it has its default: keys are what scripts rely on
    found = msgspec.structs.asdict(row)
    found |= {name: msgspec.to_builtins(found[name]) for name in ("total_s", "cost", "metric")}
    option = msgspec.structs.asdict(found.pop("option"))
    lr = planned.lr_at(row.option.batch)
    return {
        **option,
        "gpus": row.option.gpus,
        **({"lr": lr} if lr is not None else {}),
        **found,
        "epochs": told(row) if math.isfinite(row.passes_enough) else None,
        "projected": row.option.gpu_type in planned.projected,
        "chosen": i == planned.plan.chosen,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

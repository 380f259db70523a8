"""A question's answer: forecasts, the planner, what would help where nothing holds, learning rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from coadapt.cli.plan_ask import Asked
from coadapt.cli.plan_request import Request
from coadapt.configure.accumulated import AccumulatedForecast
from coadapt.configure.forecasts import SampleForecast
from coadapt.configure.outlook import Forecast
from coadapt.configure.planners import PLANNERS
from coadapt.configure.planners.exact import ExactPlanner
from coadapt.configure.problem import Evidence, Option, Plan, Question
from coadapt.configure.rates import efficiencies, rate_factor
from coadapt.configure.relax import relaxed
from coadapt.configure.scattered import ScatteredForecast
from coadapt.configure.worth import worth_running
from coadapt.errors import UnknownNameError
from coadapt.report.planned import Planned


def forecast_of(asked: Asked) -> Forecast:
    """Ours, from all that is known."""
    measured = {
        (name, sample.batch, sample.workers)
        for name, table in asked.evidence.epochs.items()
        for sample in table.samples
    }
    plain: Forecast = SampleForecast(asked.evidence, asked.work)
    if asked.scatter > 0:
        plain = ScatteredForecast(plain, asked.scatter, higher_is_better=asked.question.higher_is_better)
    return AccumulatedForecast(plain, measured)


def answer(request: Request, asked: Asked, run: str | None = None) -> Planned:
    """The plan. ``run``: the training command, where the specification has none."""
    if request.planner not in PLANNERS:
        raise UnknownNameError("planner", request.planner, PLANNERS)
    rule = request.lr_rule or str(asked.spec.get("lr_rule") or "linear")
    rate_factor(rule, 1.0)
    forecast = forecast_of(asked)

    def plan_for(question: Question, options: Sequence[Option]) -> Plan:
        ours = request.planner == ExactPlanner.name
        planner = ExactPlanner(forecast) if ours else PLANNERS[request.planner]()
        return planner.plan(question, options, asked.evidence, np.random.default_rng(request.seed))

    plan = plan_for(asked.question, asked.options)
    if plan.chosen is None:
        plan = relaxed(plan, plan_for, _surely(asked.evidence), asked.more)
    if request.planner == ExactPlanner.name:
        plan = replace(plan, short_run=worth_running(plan, forecast))
    notes = list(asked.notes)
    if plan.chosen is None and "target" in plan.binding and (seen := _best_seen(asked.evidence)) is not None:
        notes.append(f"the best {asked.question.metric} that was ever seen is {seen:.4g}")
    if plan.row.total_s.low == plan.row.total_s.high:
        notes.append(f"{request.planner} knows no uncertainty: its chances are yes or no")
    lr = request.lr if request.lr is not None else asked.spec.get("lr")
    batches = {option.batch for option in asked.options}
    return Planned(
        plan=plan,
        notes=tuple(notes),
        run=asked.spec.get("run") or run,
        spec_file=request.spec,
        lr=None if lr is None else float(lr),
        lr_rule=rule,
        initial_batch=min(batches),
        efficiency=efficiencies(forecast, batches, asked.question.epochs or 10.0)
        if rule == "adascale"
        else {},
        projected=asked.projected,
        asked_at=request.now,
    )


def _best_seen(evidence: Evidence) -> float | None:
    if evidence.metrics is None or not evidence.metrics.samples:
        return None
    seen = [sample.metric for sample in evidence.metrics.samples]
    return max(seen) if evidence.metrics.higher_is_better else min(seen)


def _surely(evidence: Evidence) -> float | None:
    """A metric that any option reaches: the worst that was ever seen."""
    if evidence.metrics is None or not evidence.metrics.samples:
        return None
    seen = [sample.metric for sample in evidence.metrics.samples]
    return min(seen) if evidence.metrics.higher_is_better else max(seen)

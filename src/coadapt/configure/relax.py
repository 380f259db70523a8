"""What would help where nothing holds the limits: the nearest target, and the fewest GPUs more, beside deadline and budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace
from scipy.special import ndtri

from coadapt.configure.outlook import Columns, Outlook
from coadapt.configure.problem import Option, Plan, Question, Relaxation
from coadapt.predict._base import FloatArray
from coadapt.units import ceil_duration, format_duration

#: Halvings of the distance to a target that would do.
_HALVINGS = 8

#: Answers a changed question on other options.
Ask = Callable[[Question, Sequence[Option]], Plan]


def relaxed(plan: Plan, ask: Ask, worst: float | None, more: Sequence[Option] = ()) -> Plan:
    """The plan with all relaxations. ``worst``: a metric that is surely reached; ``more``: options with more GPUs than allowed."""
    if plan.chosen is not None:
        return plan
    options = [row.option for row in plan.rows]
    question, found = plan.question, list(plan.relaxations)
    if question.target is not None and worst is not None and question.objective != "metric":
        lower = _nearest_target(question, options, ask, worst)
        if lower is not None:
            easier = replace(question, target=_written(lower, question.higher_is_better))
            found.append(Relaxation("target", float(easier.target or 0.0), f"with a target of {easier.goal}"))
    bigger = _fewest_gpus(question, more, ask)
    if bigger is not None:
        found.append(Relaxation("gpus", bigger.gpus, f"with {bigger.gpus} x {bigger.gpu_type}"))
    return replace(plan, relaxations=tuple(found))


def _nearest_target(question: Question, options: Sequence[Option], ask: Ask, worst: float) -> float | None:
    """The hardest target that can still be held, by halving between a sure one and the one asked for."""
    assert question.target is not None
    good, bad = worst, question.target
    if ask(replace(question, target=good), options).chosen is None:
        return None
    for _ in range(_HALVINGS):
        middle = (good + bad) / 2
        if ask(replace(question, target=middle), options).chosen is None:
            bad = middle
        else:
            good = middle
    return good


def _written(target: float, higher_is_better: bool) -> float:
    """Four digits, on the easier side: what is told must do when it is typed in."""
    if target == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(target))) - 3)
    steps = target / unit
    return float(f"{(math.floor(steps + 1e-6) if higher_is_better else math.ceil(steps - 1e-6)) * unit:.4g}")


def _fewest_gpus(question: Question, more: Sequence[Option], ask: Ask) -> Option | None:
    if not more:
        return None
    plan = ask(question, more)
    if plan.chosen is None:
        return None
    held = [row for row in plan.rows if row.chance >= question.confidence]
    fewest = min(held, key=lambda row: (row.option.gpus, row.cost.value), default=None)
    return None if fewest is None else fewest.option


def helped(
    question: Question, columns: Columns, outlook: Outlook, only: int | None
) -> tuple[tuple[str, ...], tuple[Relaxation, ...]]:
    """Which limits forbid everything, and the nearest deadline and budget that would not. A target needs forecasts: see ``relaxed``."""
    z = float(ndtri(question.confidence))
    able = outlook.reached >= question.confidence
    if only is not None:
        able &= np.arange(len(able)) == only
    if question.objective == "metric" or not able.any():
        return (("target",) if question.target is not None else ("deadline",)), ()
    # the time at which an option holds with the confidence left after the chance that the target is missed
    z_left = ndtri(np.clip(question.confidence / np.maximum(outlook.reached, 1e-9), 0.5, 1 - 1e-9))
    surely = outlook.total_s * np.exp(np.maximum(z, z_left) * outlook.log_sd)
    surely = np.where(able, surely if outlook.least_s is None else outlook.least_s, np.inf)
    cost = surely * columns.price_s
    deadline = math.inf if question.deadline_s is None else question.deadline_s
    budget = math.inf if question.budget is None else question.budget
    found: list[Relaxation] = []
    in_budget, in_time = cost <= budget, surely <= deadline
    if question.deadline_s is not None and in_budget.any():
        value = ceil_duration(float(surely[in_budget].min()))
        found.append(Relaxation("deadline", value, f"with a deadline of {format_duration(value)}"))
    if question.budget is not None and in_time.any():
        value = _ceil_amount(float(cost[in_time].min()))
        found.append(Relaxation("budget", value, f"with a budget of {question.amount(value)}"))
    binding = tuple(each.limit for each in found) or ("deadline", "budget")
    if not found and question.deadline_s is not None and question.budget is not None:
        found.append(_both(question, surely, cost))
    likeliest = float(outlook.chance.max() if only is None else outlook.chance[only])
    if question.confidence > 0.5 and 0.5 <= likeliest < question.confidence:
        best = math.floor(100 * likeliest) / 100
        found.append(Relaxation("confidence", best, f"with a confidence of {best:g}"))
    return binding, tuple(found)


def _both(question: Question, surely: FloatArray, cost: FloatArray) -> Relaxation:
    """Neither limit alone would do: the option that is least over either of them, and what it needs of both."""
    assert question.deadline_s is not None
    assert question.budget is not None
    i = int(np.argmin(np.maximum(surely / question.deadline_s, cost / question.budget)))
    deadline = ceil_duration(float(max(surely[i], question.deadline_s)))
    budget = question.amount(_ceil_amount(float(max(cost[i], question.budget))))
    said = f"with a deadline of {format_duration(deadline)} and a budget of {budget}"
    return Relaxation("deadline and budget", deadline, said)


def _ceil_amount(cost: float) -> float:
    """The next amount that is written exactly: to the cent, small ones to two digits."""
    unit = 0.01 if cost >= 0.1 else 10.0 ** (math.floor(math.log10(max(cost, 1e-9))) - 1)
    return math.ceil(cost / unit - 1e-9) * unit

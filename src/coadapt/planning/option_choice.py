"""The choice: the best option, the frontier, why each other option lost, and what would help where none is feasible.

``answered`` builds the whole plan from an outlook and a choice: every row with its reason, the limits that bind, and the
nearest deadline and budget that would make an option feasible. ``relaxed`` adds the nearest target and the fewest
additional GPUs, which need new forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace
from scipy.special import ndtri

from coadapt.model.interval import Interval
from coadapt.planning.option_outlook import Z80, Columns, Outlook
from coadapt.planning.problem import Option, Plan, Question, Relaxation, Row
from coadapt.prediction._base import FloatArray
from coadapt.units import ceil_duration, format_chance, format_duration

#: A chance below this is none.
_NO_CHANCE = 1e-6


def best_of(question: Question, outlook: Outlook) -> int | None:
    """The best option among those that hold the limits with the confidence asked for; None if none does."""
    holds = outlook.chance >= question.confidence
    if not holds.any():
        return None
    keys = _keys(question, outlook)
    order = np.lexsort(tuple(np.where(holds, key, np.inf) for key in reversed(keys)))
    return int(order[0])


def likeliest_of(question: Question, outlook: Outlook) -> int:
    """The option nearest to holding the limits, where none holds them with the confidence asked for.

    The best of those that have at least that share of the highest chance there is: a hair more chance is not worth twice the
    cost. Where nothing has a chance: best metric in time, then least over time, then cheapest.
    """
    most = float(outlook.chance.max())
    if most > _NO_CHANCE:
        near = outlook.chance >= question.confidence * most
        keys = _keys(question, outlook)
        return int(np.lexsort(tuple(np.where(near, key, np.inf) for key in reversed(keys)))[0])
    in_time = outlook.total_s <= outlook.limit_s
    with np.errstate(invalid="ignore", divide="ignore"):
        over = np.where(np.isfinite(outlook.limit_s), outlook.total_s / outlook.limit_s, 0.0)
    worth = np.zeros(len(over)) if outlook.metric is None else -_signed(question, outlook.metric)
    short = np.where(in_time, worth, over)
    return int(np.lexsort((outlook.cost, short, ~in_time))[0])


def frontier_of(question: Question, outlook: Outlook) -> tuple[int, ...]:
    """Rows that reach the target and that no other beats in time and cost (and in the metric, where that is the aim), by time."""
    able = np.isfinite(outlook.total_s) & (outlook.reached >= 0.5) & (outlook.passes > 0)
    index = np.flatnonzero(able)
    worth = np.zeros(len(outlook.cost))
    if outlook.metric is not None and question.target is None:
        worth = -_signed(question, outlook.metric)
    order = index[np.lexsort((worth[index], outlook.cost[index], outlook.total_s[index]))]
    kept: list[int] = []
    for i in order:
        if not any(outlook.cost[j] <= outlook.cost[i] and worth[j] <= worth[i] for j in kept):
            kept.append(int(i))
    return tuple(kept)


def _signed(question: Question, metric: FloatArray) -> FloatArray:
    return metric if question.higher_is_better else -metric


def expected(outlook: Outlook) -> tuple[FloatArray, FloatArray]:
    """Expected cost and expected time, which a spread makes higher than the median."""
    mean = np.exp(outlook.log_sd**2 / 2)
    return outlook.cost * mean, outlook.total_s * mean


def _keys(question: Question, outlook: Outlook) -> tuple[FloatArray, ...]:
    """The value to minimise, and then the values that break ties."""
    cost, total = expected(outlook)
    if question.objective == "metric":
        assert outlook.metric is not None
        return -_signed(question, outlook.metric), cost, total
    return (cost, total) if question.objective == "cost" else (total, cost)


#: Halvings of the distance to a target that would do.
_HALVINGS = 8

#: Answers a changed question on other options.
Ask = Callable[[Question, Sequence[Option]], Plan]


def relaxed(plan: Plan, ask: Ask, worst: float | None, more: Sequence[Option] = ()) -> Plan:
    """The plan with all relaxations.

    Args:
        plan: A plan; returned as it is if an option was chosen.
        ask: Plans another question or other options.
        worst: A metric that is reached for certain; None: not known.
        more: Options with more GPUs than allowed.
    """
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
    """Four digits, rounded to the easier side, so that the printed target can be met."""
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
    """The limits that forbid every option, and the nearest deadline and budget that would not. Targets: see ``relaxed``.

    Args:
        question: The limits and the objective.
        columns: The options as arrays.
        outlook: Their outlook.
        only: Index of the only option to consider; None: all.
    """
    z = float(ndtri(question.confidence))
    able = outlook.reached >= question.confidence
    if only is not None:
        able &= np.arange(len(able)) == only
    never = ("target",) if question.target is not None else ("deadline",)
    if question.objective == "metric" or not able.any():
        return never, ()
    # the time at which an option holds with the confidence left after the chance that the target is missed
    z_left = ndtri(np.clip(question.confidence / np.maximum(outlook.reached, 1e-9), 0.5, 1 - 1e-9))
    surely = outlook.total_s * np.exp(np.maximum(z, z_left) * outlook.log_sd)
    surely = np.where(able, surely if outlook.least_s is None else outlook.least_s, np.inf)
    # an option that may reach the target, but at no time with the confidence asked for, is helped by no deadline
    finite = np.isfinite(surely)
    if not finite.any():
        return never, ()
    cost = np.where(finite, surely, 0.0) * columns.price_s
    deadline = math.inf if question.deadline_s is None else question.deadline_s
    budget = math.inf if question.budget is None else question.budget
    found: list[Relaxation] = []
    in_budget, in_time = finite & (cost <= budget), finite & (surely <= deadline)
    if question.deadline_s is not None and in_budget.any():
        value = ceil_duration(float(surely[in_budget].min()))
        found.append(Relaxation("deadline", value, f"with a deadline of {format_duration(value)}"))
    if question.budget is not None and in_time.any():
        value = _ceil_amount(float(cost[in_time].min()))
        found.append(Relaxation("budget", value, f"with a budget of {question.amount(value)}"))
    binding = tuple(each.limit for each in found) or ("deadline", "budget")
    if not found and question.deadline_s is not None and question.budget is not None:
        found.append(_both(question, surely[finite], cost[finite]))
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


def picked(planner: str, question: Question, columns: Columns, outlook: Outlook, pick: int) -> Plan:
    """The plan of a planner that takes one option whatever its chances; it is not chosen if it breaks a limit.

    Args:
        planner: Name of the planner.
        question: The limits and the objective.
        columns: The options as arrays.
        outlook: Their outlook.
        pick: Index of the option.
    """
    holds = bool(outlook.chance[pick] >= question.confidence)
    return answered(planner, question, columns, outlook, pick if holds else None, likeliest=pick)


def answered(
    planner: str,
    question: Question,
    columns: Columns,
    outlook: Outlook,
    chosen: int | None,
    *,
    likeliest: int | None = None,
) -> Plan:
    """Build the whole plan from an outlook and a choice.

    Args:
        planner: Name of the planner.
        question: The limits and the objective.
        columns: The options as arrays.
        outlook: Their outlook.
        chosen: Index of the chosen option; None: no option satisfies the limits.
        likeliest: Index of the option that the planner takes in any case; None: the nearest to the limits.
    """
    # a planner that takes one option whatever its chances is helped by what helps that one
    only = likeliest
    if likeliest is None:
        likeliest = likeliest_of(question, outlook) if chosen is None else chosen
    why = _reasons(question, columns, outlook, chosen)
    total_factor = np.exp(Z80 * outlook.log_sd)
    rows = tuple(
        _row(question, option, i, outlook, float(total_factor[i]), why[i])
        for i, option in enumerate(columns.options)
    )
    binding, relaxations = ((), ()) if chosen is not None else helped(question, columns, outlook, only)
    return Plan(
        planner=planner,
        question=question,
        rows=rows,
        chosen=chosen,
        likeliest=likeliest,
        frontier=frontier_of(question, outlook),
        binding=binding,
        relaxations=relaxations,
    )


def _row(question: Question, option: Option, i: int, outlook: Outlook, factor: float, why: str) -> Row:
    total, cost = float(outlook.total_s[i]), float(outlook.cost[i])
    metric = None
    if outlook.metric is not None and outlook.metric_sd is not None:
        value, half = float(outlook.metric[i]), Z80 * float(outlook.metric_sd[i])
        if question.target is not None and outlook.reached[i] >= 0.5:
            # the passes are those at which the target is expected: rounding must not show less
            value = max(value, question.target) if question.higher_is_better else min(value, question.target)
        metric = Interval(value=value, low=max(value - half, 0.0), high=value + half)
    return Row(
        option=option,
        passes=float(outlook.passes[i]),
        passes_enough=float(outlook.passes_enough[i]),
        total_s=Interval(value=total, low=total / factor, high=total * factor),
        cost=Interval(value=cost, low=cost / factor, high=cost * factor),
        metric=metric,
        chance=float(outlook.chance[i]),
        why=why,
        passes_expected=None
        if question.target is None or outlook.expected is None
        else float(outlook.expected[i]),
    )


def _reasons(question: Question, columns: Columns, outlook: Outlook, chosen: int | None) -> list[str]:
    """One short phrase per option."""
    z = float(ndtri(question.confidence))
    surely = outlook.total_s * np.exp(z * outlook.log_sd)
    deadline = math.inf if question.deadline_s is None else question.deadline_s
    budget = math.inf if question.budget is None else question.budget

    def unsure(i: int) -> str:
        # the one chance there is of a row: that all its limits hold
        return f"chance {format_chance(float(outlook.chance[i]))}, below {question.confidence:.0%}"

    texts = []
    for i in range(len(columns.options)):
        if i == chosen:
            texts.append("")
        elif outlook.reached[i] < question.confidence:
            texts.append(
                "not one pass fits the limits" if outlook.passes[i] <= 0 else "may never reach the target"
            )
        elif outlook.total_s[i] > deadline:
            texts.append(f"too slow by {format_duration(outlook.total_s[i] - deadline)}")
        elif outlook.cost[i] > budget:
            # what is expected to break a limit comes before what only may
            texts.append(f"over the budget by {question.amount(outlook.cost[i] - budget)}")
        elif surely[i] > deadline:
            texts.append(f"may be late: {unsure(i)}")
        elif outlook.chance[i] < question.confidence:
            texts.append(f"may miss a limit: {unsure(i)}")
        elif chosen is not None:
            texts.append(_worse(question, outlook, i, chosen))
        else:
            texts.append("")
    return texts


def _worse(question: Question, outlook: Outlook, i: int, chosen: int) -> str:
    if question.objective == "metric" and outlook.metric is not None:
        less = abs(float(outlook.metric[chosen] - outlook.metric[i]))
        if less > 0:
            return f"{question.metric} worse by {less:.3g}"
    values = outlook.total_s if question.objective == "time" else outlook.cost
    what = "slower" if question.objective == "time" else "more expensive"
    share = float(values[i] / values[chosen] - 1) if values[chosen] > 0 else 0.0
    return f"{share:.1%} {what}" if share > 0.0005 else "equal, less certain"

"""What would help where nothing holds the limits: the nearest target, and the fewest GPUs more, beside deadline and budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from coadapt.configure.problem import Option, Plan, Question, Relaxation

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
            found.append(Relaxation("target", lower, f"at {lower:.4g}"))
    bigger = _fewest_gpus(question, more, ask)
    if bigger is not None:
        found.append(Relaxation("gpus", bigger, f"with {bigger} GPUs"))
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


def _fewest_gpus(question: Question, more: Sequence[Option], ask: Ask) -> int | None:
    if not more:
        return None
    plan = ask(question, more)
    held = [row.option.gpus for row in plan.rows if row.chance >= question.confidence]
    return min(held, default=None)

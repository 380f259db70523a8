"""What a user said to ``coadapt plan``, in words, and the question it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coadapt.cli import plan_files
from coadapt.cli.past_runs import metric_column
from coadapt.cli.plan_words import Target, currency_in, parse_deadline, parse_money, parse_target
from coadapt.configure.problem import Objective, Question
from coadapt.errors import InputError

GPUS_PER_NODE = 8
#: Parts of a metric's name that say: the less the better.
_LOWER = ("loss", "error", "wer", "cer", "perplexity", "ppl")


@dataclass
class Request:
    """Everything a user can say; None: not said. Texts as in the command."""

    spec: str | None = None
    samples: str | None = None
    #: File of past jobs (``coadapt simulate --save-pool``).
    pool: str | None = None
    deadline: str | float | None = None
    target: str | None = None
    accuracy: float | None = None
    budget: str | float | None = None
    gpus: str | None = None
    batch: str | None = None
    per_gpu_max: int | None = None
    #: Of one GPU, "16GB"; None: as its datasheet says.
    memory: str | None = None
    confidence: float = 0.9
    objective: Objective = "cost"
    #: The run ends by itself once the target is reached.
    stops: bool = False
    prices: str | Mapping[str, float] | None = None
    epochs: float | None = None
    planner: str = "exact"
    gpus_per_node: int = GPUS_PER_NODE
    setup_s: float | None = None
    validation_s: float | None = None
    checkpoint_s: float | None = None
    #: Spread (of the logarithm) of the same run's time from one time to the next; measured by --profile.
    run_sd: float = 0.0
    lr: float | None = None
    lr_rule: str | None = None
    seed: int = 0
    now: datetime = field(default_factory=datetime.now)

    def read_spec(self) -> dict[str, Any]:
        """The job's specification; empty where there is none."""
        return plan_files.read_spec(self.spec) if self.spec else {}


def target_of(request: Request, spec: Mapping[str, Any]) -> Target | None:
    """What is to be reached."""
    if request.target is not None and request.accuracy is not None:
        raise InputError("--target and --accuracy say the same thing; give one of them")
    if request.accuracy is not None:
        return Target("accuracy", True, float(request.accuracy))
    text = request.target or spec.get("target")
    return parse_target(str(text)) if text else None


def metric_of(request: Request, target: Target | None) -> tuple[str | None, bool]:
    """The metric's name, if one is known, and whether more of it is better."""
    if target is not None:
        return target.name, target.higher_is_better
    name = metric_column(request.samples) if request.samples else None
    return name, not (name and any(part in name.lower() for part in _LOWER))


def question_of(
    request: Request, spec: Mapping[str, Any], target: Target | None, types: list[str]
) -> Question:
    """The limits and the aim."""
    deadline = request.deadline if request.deadline is not None else spec.get("deadline")
    budget = request.budget if request.budget is not None else spec.get("budget")
    epochs = request.epochs if request.epochs is not None else spec.get("epochs", spec.get("passes"))
    name, higher = metric_of(request, target)
    prices, currency = _prices(request, types)
    if budget is not None and currency is None:
        currency = currency_in(str(budget))
    return Question(
        objective=request.objective,
        target=target.value if target else None,
        higher_is_better=higher,
        metric=name or "metric",
        deadline_s=None if deadline is None else _seconds(deadline, request.now),
        budget=None if budget is None else parse_money(str(budget)),
        prices=prices,
        currency=currency or "$",
        confidence=request.confidence,
        epochs=None if epochs is None else float(epochs),
        setup_s=request.setup_s or 0.0,
        validation_s=request.validation_s or 0.0,
        checkpoint_s=request.checkpoint_s or 0.0,
        stops=request.stops,
        run_sd=request.run_sd,
    )


def _prices(request: Request, types: list[str]) -> tuple[dict[str, float], str | None]:
    if isinstance(request.prices, Mapping):
        return {str(name).lower(): float(price) for name, price in request.prices.items()}, None
    return plan_files.read_prices(request.prices, types) if request.prices else ({}, None)


def _seconds(deadline: str | float, now: datetime) -> float:
    if isinstance(deadline, int | float):
        return float(deadline)
    return parse_deadline(deadline, now)

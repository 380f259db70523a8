"""The request of ``coadapt plan`` as the user wrote it, and the question that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coadapt.errors import InputError
from coadapt.planning.past_runs import metric_column
from coadapt.planning.problem import Objective, Question
from coadapt.spec.deadline import parse_deadline
from coadapt.spec.gpus import parse_range
from coadapt.spec.job_file import parse_job
from coadapt.spec.prices import Prices, checked_prices, currency_in, parse_money, read_prices
from coadapt.spec.target import Target, parse_target
from coadapt.spec.yaml_file import read_mapping

GPUS_PER_NODE = 8
#: Parts of a metric's name that say: the less the better.
_LOWER = ("loss", "error", "wer", "cer", "perplexity", "ppl")


#: Options that stand for the key of the same name in a job file.
_OPTIONS = ("target", "deadline", "budget", "epochs", "lr", "lr_rule")


@dataclass
class Request:
    """All options of ``coadapt plan``, as texts or values; None: not given."""

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
        """The job file, checked as for submission; empty if there is none. Options override the file, as in ``submit``."""
        if not self.spec:
            return {}
        given = read_mapping(self.spec, "job file")
        for name in _OPTIONS:
            if getattr(self, name) is not None:
                given.pop(name, None)
        if self.epochs is not None:
            given.pop("passes", None)
        if self.gpus is not None and isinstance(given.get("resources"), Mapping):
            given["resources"] = {**given["resources"], "accelerators": None}
        if self.batch is not None and isinstance(given.get("batch") or {}, Mapping):
            low, high = parse_range("batch sizes", self.batch)
            given["batch"] = {**(given.get("batch") or {}), "initial": low, "max": high}
        return parse_job(given, where=self.spec, now=self.now).given


def target_of(request: Request, spec: Mapping[str, Any]) -> Target | None:
    """The target of the request, else of the job file."""
    if request.target is not None and request.accuracy is not None:
        raise InputError("--target and --accuracy say the same thing; give one of them")
    if request.accuracy is not None:
        return Target("accuracy", True, float(request.accuracy))
    text = request.target or spec.get("target")
    return parse_target(str(text)) if text else None


def metric_of(request: Request, target: Target | None) -> tuple[str | None, bool]:
    """Name of the metric, None if not known, and whether a higher value is better."""
    if target is not None:
        return target.name, target.higher_is_better
    name = metric_column(request.samples) if request.samples else None
    return name, not (name and any(part in name.lower() for part in _LOWER))


def question_of(
    request: Request, spec: Mapping[str, Any], target: Target | None, types: list[str]
) -> Question:
    """The limits and the objective of a request.

    Args:
        request: What the user asked for; overrides the job file.
        spec: The job file.
        target: The target; None: none.
        types: GPU types offered.
    """
    deadline = request.deadline if request.deadline is not None else spec.get("deadline")
    budget = request.budget if request.budget is not None else spec.get("budget")
    epochs = request.epochs if request.epochs is not None else spec.get("epochs", spec.get("passes"))
    name, higher = metric_of(request, target)
    prices = _prices(request, types)
    currency = prices.currency
    if budget is not None and currency is None:
        currency = currency_in(str(budget))
    return Question(
        objective=request.objective,
        target=target.value if target else None,
        higher_is_better=higher,
        metric=name or "metric",
        deadline_s=None if deadline is None else parse_deadline(deadline, request.now),
        budget=None if budget is None else parse_money(str(budget)),
        # types that are offered under another name than their datasheet's have the same price
        prices={
            **prices.by_type,
            **{name: price for name in types if (price := prices.of(name)) is not None},
        },
        currency=currency or "$",
        confidence=request.confidence,
        epochs=None if epochs is None else float(epochs),
        setup_s=request.setup_s or 0.0,
        validation_s=request.validation_s or 0.0,
        checkpoint_s=request.checkpoint_s or 0.0,
        stops=request.stops,
        run_sd=request.run_sd,
    )


def _prices(request: Request, types: list[str]) -> Prices:
    if isinstance(request.prices, Mapping):
        return Prices(checked_prices(request.prices, None))
    return read_prices(request.prices or "", types)

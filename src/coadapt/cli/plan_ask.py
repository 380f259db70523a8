"""From what a user gave to a plan: the question, the options, the evidence, and what is to be said beside the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from msgspec.structs import replace

from coadapt.cli import plan_files
from coadapt.cli.plan_words import (
    GpuRange,
    Target,
    parse_deadline,
    parse_gpus,
    parse_money,
    parse_range,
    parse_target,
)
from coadapt.configure.offers import Offer, batch_sizes, options_of
from coadapt.configure.outlook import Forecast
from coadapt.configure.planners import PLANNERS
from coadapt.configure.planners.exact import ExactPlanner
from coadapt.configure.problem import Evidence, Objective, Option, Plan, Question
from coadapt.configure.relax import relaxed
from coadapt.errors import InputError, UnknownNameError
from coadapt.predict.hardware import find_gpu
from coadapt.units import parse_duration

GPUS_PER_NODE = 8
#: Beyond the GPUs allowed, for "with so many it would do".
_MORE = 4


@dataclass
class Request:
    """Everything a user can say; None: not said. Texts as in the command."""

    spec: str | None = None
    samples: str | None = None
    deadline: str | float | None = None
    target: str | None = None
    accuracy: float | None = None
    budget: str | float | None = None
    gpus: str | None = None
    batch: str | None = None
    per_gpu_max: int | None = None
    confidence: float = 0.9
    objective: Objective = "cost"
    prices: str | Mapping[str, float] | None = None
    epochs: float | None = None
    planner: str = "exact"
    gpus_per_node: int = GPUS_PER_NODE
    setup_s: float | None = None
    validation_s: float | None = None
    checkpoint_s: float | None = None
    lr: float | None = None
    lr_rule: str | None = None
    seed: int = 0
    now: datetime = field(default_factory=datetime.now)


@dataclass(frozen=True)
class Asked:
    """A question ready to be answered."""

    question: Question
    options: Sequence[Option]
    more: Sequence[Option]
    metric: str
    spec: Mapping[str, Any]
    notes: tuple[str, ...]
    evidence: Evidence


@dataclass(frozen=True)
class Planned:
    """The answer and what belongs to it."""

    plan: Plan
    metric: str
    #: "GPU-hours", or the unit of the prices.
    unit: str
    notes: tuple[str, ...]
    #: Template of the training command, where it is known.
    run: str | None
    lr: float | None
    lr_rule: str
    initial_batch: int

    def lr_at(self, batch: int) -> float | None:
        """Learning rate at a batch size, by the rule."""
        return None if self.lr is None else scaled_lr(self.lr, self.lr_rule, batch / self.initial_batch)


def scaled_lr(lr: float, rule: str, scale: float) -> float:
    """Learning rate at ``scale`` times the smallest batch size: in proportion (SGD), by the root (Adam), or as it is."""
    rules: dict[str, float] = {"linear": scale, "sqrt": math.sqrt(scale), "none": 1.0}
    if rule not in rules:
        raise UnknownNameError("learning-rate rule", rule, rules)
    return lr * rules[rule]


def ask(request: Request, evidence: Evidence | None = None) -> Asked:
    """Checks and joins options, specification and samples; ``evidence``: in place of the file of samples."""
    spec = plan_files.read_spec(request.spec) if request.spec else {}
    target = _target(request, spec)
    ranges = parse_gpus(request.gpus or _accelerators(spec) or "gpu:1..8")
    per_node, notes = request.gpus_per_node, []
    if evidence is None:
        evidence = Evidence()
        if request.samples:
            evidence = plan_files.read_samples(
                request.samples,
                metric=target.name if target else None,
                higher_is_better=target.higher_is_better if target else True,
                gpus_per_node=per_node,
                gpu_type=ranges[0].gpu_type,
            )
    ranges = [_named(each, evidence) for each in ranges]
    notes += _check_types(ranges, evidence)
    options, more = _options(request, spec, ranges, evidence)
    question = _question(request, spec, target, ranges)
    if question.target is not None and not (evidence.metrics and evidence.metrics.samples):
        if question.epochs is None:
            raise InputError(
                "nothing is known of the metric, so a target cannot be planned for: give past runs with the metric "
                "(--samples), or the number of epochs (--epochs) for time and cost alone"
            )
        notes.append(
            "nothing is known of the metric: time and cost only, for the epochs given; past runs (--samples) would tell it"
        )
        question = replace(question, target=None)
    if evidence.metrics is None and question.objective == "metric":
        raise InputError("the best metric needs past runs with the metric (--samples)")
    assumed = [
        name for name in ("setup", "validation", "checkpoint") if getattr(request, f"{name}_s") is None
    ]
    if assumed:
        notes.append(
            f"taken as 0 s: {', '.join(assumed)} (--setup, --validation and --checkpoint say otherwise)"
        )
    if not question.prices:
        notes.append("no prices: cost is in GPU-hours (--prices FILE, per GPU type and hour)")
    return Asked(question, options, more, target.name if target else "metric", spec, tuple(notes), evidence)


def answer(request: Request, asked: Asked, forecast: Forecast | None = None) -> Planned:
    """The plan, with what would help where there is none. ``forecast``: for our planner, where more is known than samples tell."""
    if request.planner not in PLANNERS:
        raise UnknownNameError("planner", request.planner, PLANNERS)
    evidence = asked.evidence

    def plan_for(question: Question, options: Sequence[Option]) -> Plan:
        ours = forecast is not None and request.planner == ExactPlanner.name
        planner = ExactPlanner(forecast) if ours else PLANNERS[request.planner]()
        return planner.plan(question, options, evidence, np.random.default_rng(request.seed))

    plan = plan_for(asked.question, asked.options)
    notes = list(asked.notes)
    if plan.chosen is None:
        plan = relaxed(plan, plan_for, _surely(evidence), asked.more)
    rule = request.lr_rule or str(asked.spec.get("lr_rule") or "linear")
    scaled_lr(1.0, rule, 1.0)
    lr = request.lr if request.lr is not None else asked.spec.get("lr")
    return Planned(
        plan=plan,
        metric=asked.metric,
        unit="per price file" if asked.question.prices else "GPU-hours",
        notes=tuple(notes),
        run=asked.spec.get("run"),
        lr=None if lr is None else float(lr),
        lr_rule=rule,
        initial_batch=min(option.batch for option in asked.options),
    )


def _surely(evidence: Evidence) -> float | None:
    """A metric that any option reaches: the worst that was ever seen."""
    if evidence.metrics is None or not evidence.metrics.samples:
        return None
    seen = [sample.metric for sample in evidence.metrics.samples]
    return min(seen) if evidence.metrics.higher_is_better else max(seen)


def _target(request: Request, spec: Mapping[str, Any]) -> Target | None:
    if request.target is not None and request.accuracy is not None:
        raise InputError("--target and --accuracy say the same thing; give one of them")
    if request.accuracy is not None:
        return Target("accuracy", True, float(request.accuracy))
    text = request.target or spec.get("target")
    return parse_target(str(text)) if text else None


def _accelerators(spec: Mapping[str, Any]) -> str | None:
    resources = spec.get("resources")
    found = resources.get("accelerators") if isinstance(resources, Mapping) else None
    return None if found is None else str(found)


def _named(given: GpuRange, evidence: Evidence) -> GpuRange:
    """GPUs without a type are those that were sampled, if these are of one type."""
    if given.gpu_type == "gpu" and len(evidence.epochs) == 1:
        return given._replace(gpu_type=next(iter(evidence.epochs)))
    return given


def _check_types(ranges: list[GpuRange], evidence: Evidence) -> list[str]:
    notes = []
    for each in ranges:
        if each.gpu_type in evidence.epochs or (each.gpu_type == "gpu" and not evidence.epochs):
            continue
        find_gpu(each.gpu_type)
        if evidence.epochs:
            notes.append(
                f"{each.gpu_type} was not sampled: its times are projected by datasheets, with wide intervals"
            )
    return notes


def _options(
    request: Request, spec: Mapping[str, Any], ranges: list[GpuRange], evidence: Evidence
) -> tuple[list[Option], list[Option]]:
    batch = spec.get("batch") if isinstance(spec.get("batch"), Mapping) else {}
    assert isinstance(batch, Mapping)
    known = sorted(
        {s.batch for table in evidence.epochs.values() for s in table.samples}
        | {s.batch for s in (evidence.metrics.samples if evidence.metrics else ())}
    )
    if request.batch:
        low, high = parse_range("batch sizes", request.batch)
    elif "initial" in batch:
        low, high = int(batch["initial"]), int(batch.get("max", batch["initial"]))
    elif known:
        low, high = known[0], known[-1]
    else:
        raise InputError("which batch sizes? give --batch 32..4096, or past runs (--samples)")
    sizes = batch_sizes(low, high, known)
    per_gpu = request.per_gpu_max or batch.get("per_gpu")
    limit = None if per_gpu is None else int(str(per_gpu).split("..")[-1])

    def offers(least: int, times: int) -> list[Offer]:
        return [
            Offer(
                gpu_type=each.gpu_type,
                replicas=tuple(range(each.low if least == 0 else each.high + 1, each.high * times + 1)),
                gpus_per_node=request.gpus_per_node,
                per_gpu_max=limit,
            )
            for each in ranges
        ]

    options = options_of(offers(0, 1), sizes)
    if not options:
        raise InputError(f"no batch size of {low}..{high} can be shared by {ranges[0].low} GPUs or more")
    return options, options_of(offers(1, _MORE), sizes)


def _question(
    request: Request, spec: Mapping[str, Any], target: Target | None, ranges: list[GpuRange]
) -> Question:
    deadline = request.deadline if request.deadline is not None else spec.get("deadline")
    budget = request.budget if request.budget is not None else spec.get("budget")
    epochs = request.epochs if request.epochs is not None else spec.get("epochs", spec.get("passes"))
    types = [each.gpu_type for each in ranges]
    prices: dict[str, float] = {}
    if isinstance(request.prices, Mapping):
        prices = {str(name).lower(): float(price) for name, price in request.prices.items()}
    elif request.prices:
        prices = plan_files.read_prices(request.prices, types)
    return Question(
        objective=request.objective,
        target=target.value if target else None,
        higher_is_better=target.higher_is_better if target else True,
        deadline_s=None if deadline is None else _seconds(deadline, request.now),
        budget=None if budget is None else parse_money(str(budget)),
        prices=prices,
        confidence=request.confidence,
        epochs=None if epochs is None else float(epochs),
        setup_s=request.setup_s or 0.0,
        validation_s=request.validation_s or 0.0,
        checkpoint_s=request.checkpoint_s or 0.0,
    )


def _seconds(deadline: str | float, now: datetime) -> float:
    if isinstance(deadline, int | float):
        return float(deadline)
    return parse_deadline(deadline, now)


def seconds(text: str | float | None) -> float | None:
    """A duration that may be absent."""
    return None if text is None else float(text) if isinstance(text, int | float) else parse_duration(text)

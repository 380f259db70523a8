"""From what a user gave to a plan: the question, the options, the evidence, and what is to be said beside the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from coadapt.cli.past_runs import read_samples
from coadapt.cli.plan_options import gpu_ranges, named, options_for, projected_types
from coadapt.cli.plan_request import Request, metric_of, question_of, target_of
from coadapt.configure.problem import Evidence, Option, Question
from coadapt.errors import InputError
from coadapt.predict.work_epochs import Work


@dataclass(frozen=True)
class Asked:
    """A question ready to be answered."""

    question: Question
    options: Sequence[Option]
    more: Sequence[Option]
    spec: Mapping[str, Any]
    notes: tuple[str, ...]
    evidence: Evidence
    projected: frozenset[str] = frozenset()
    #: How passes become work, where that is known better than the metrics tell it.
    work: Work | None = None
    #: By how much the metric of runs alike differs, where that was measured.
    scatter: float = 0.0


def ask(request: Request, evidence: Evidence | None = None, work: Work | None = None) -> Asked:
    """Checks and joins options, specification and samples; ``evidence``: in place of the files of samples and past jobs."""
    spec = request.read_spec()
    target = target_of(request, spec)
    ranges, notes = gpu_ranges(request, spec), []
    if evidence is None:
        evidence = Evidence()
        if request.samples:
            name, higher = metric_of(request, target)
            evidence = read_samples(
                request.samples,
                metric=name,
                higher_is_better=higher,
                gpus_per_node=request.gpus_per_node,
                gpu_type=ranges[0].gpu_type,
            )
        if request.pool:
            from coadapt.cli.plan_pool import from_pool

            learned = from_pool(request, spec, evidence)
            evidence, work = learned.evidence, learned.work
            notes.append(learned.note)
            if learned.epochs is not None and request.epochs is None and "epochs" not in spec:
                spec = {**spec, "epochs": learned.epochs}
    ranges = [named(each, evidence) for each in ranges]
    projected = projected_types(ranges, evidence)
    notes += [
        f"{name}* was not sampled: its times are projected by datasheets, with wide intervals"
        for name in projected
    ]
    options, more = options_for(request, spec, ranges, evidence)
    question, more_notes = _known(
        question_of(request, spec, target, [each.gpu_type for each in ranges]), evidence
    )
    return Asked(
        question,
        options,
        more,
        spec,
        (*notes, *more_notes, *_assumed(request, question)),
        evidence,
        frozenset(projected),
        work,
    )


def _known(question: Question, evidence: Evidence) -> tuple[Question, list[str]]:
    """Without anything known of the metric a target cannot be planned for."""
    if evidence.metrics is not None and evidence.metrics.samples:
        return question, []
    if question.objective == "metric":
        raise InputError("the best metric needs past runs with the metric (--samples)")
    if question.target is None:
        return question, []
    if question.epochs is None:
        raise InputError(
            "nothing is known of the metric, so a target cannot be planned for: give past runs with the metric "
            "(--samples), or the number of epochs (--epochs) for time and cost alone"
        )
    return replace(question, target=None), [
        "nothing is known of the metric: time and cost only, for the epochs given; past runs (--samples) would tell it"
    ]


def _assumed(request: Request, question: Question) -> list[str]:
    notes = []
    silent = [name for name in ("setup", "validation", "checkpoint") if getattr(request, f"{name}_s") is None]
    if silent:
        notes.append(
            f"taken as 0 s: {', '.join(silent)} (--setup, --validation and --checkpoint say otherwise)"
        )
    if not question.prices:
        notes.append("no prices: cost is in GPU-hours (--prices FILE, per GPU type and hour)")
    return notes

"""Every planner on every question about a task: the cells of ``benchmarks.plan``.

Questions, the same for all planners: targets at 90, 93, 96 and 99% of the gain that every batch size reaches; deadlines at 1.05, 1.25, 1.6, 2.5 and 4
times the fastest possible; cost for each pair of them, metric for each deadline (of the 96% target), time for each target. Samples: 60, 120 or
240 random runs (option and length), five seeds. Where a planner's models see nothing that holds the limits it gives its
nearest option (``answer.likeliest_of``, for all alike).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cells import cell, source_hash
from benchmarks.plan_truth import Truth, truth_of
from coadapt.planning.problem import Evidence, Option, Planner, Question
from coadapt.plugins import PLANNERS

TARGETS = (0.90, 0.93, 0.96, 0.99)
DEADLINES = (1.05, 1.25, 1.6, 2.5, 4.0)
SAMPLES = (60, 120, 240)
SEEDS, QUICK_SEEDS = 5, 1
OURS = "exact"
METHODS = (OURS, "co-configuration", "cynthia", "lb-bsp", "bayesian", "linear-scaling", "random")
#: Files under src/coadapt that a choice depends on; how it is worded does not matter.
_SOURCES = (
    *(f"planning/{name}.py" for name in ("forecasts", "option_choice", "option_outlook", "problem")),
    "planning/planners/**/*.py",
    "prediction/_base.py",
    "prediction/samples/*.py",
)


def questions(truth: Truth) -> list[tuple[dict[str, Any], Question]]:
    """All of a task, with what each is called."""
    found = []
    for share in TARGETS:
        target = truth.target(share)
        fastest = truth.fastest(target)
        same: dict[str, Any] = {"target": target, "higher_is_better": truth.higher, "whole_passes": False}
        for factor in DEADLINES:
            about = {"objective": "cost", "share": share, "factor": factor}
            found.append((about, Question(objective="cost", deadline_s=factor * fastest, **same)))
        found.append(
            ({"objective": "time", "share": share, "factor": 0.0}, Question(objective="time", **same))
        )
    fastest = truth.fastest(truth.target(0.96))
    for factor in DEADLINES:
        question = Question(
            objective="metric",
            deadline_s=factor * fastest,
            higher_is_better=truth.higher,
            whole_passes=False,
        )
        found.append(({"objective": "metric", "share": 0.0, "factor": factor}, question))
    return found


def judged(truth: Truth, question: Question, option: Option) -> dict[str, Any]:
    """What a choice really comes to."""
    if question.objective == "metric":
        assert question.deadline_s is not None
        passes = question.deadline_s / truth.pass_s[option]
        held = passes >= float(truth.curves[option.batch].passes[0])
        return {"value": truth.metric_after(option.batch, passes), "in_time": held, "reached": True}
    assert question.target is not None
    passes, reached = truth.passes_to(option.batch, question.target)
    total = passes * truth.pass_s[option]
    in_time = question.deadline_s is None or total <= question.deadline_s * (1 + 1e-9)
    value = total * option.gpus if question.objective == "cost" else total
    return {"value": value, "in_time": in_time, "reached": reached}


def optimum(truth: Truth, question: Question) -> float:
    """The best value any option has within the limits."""
    values = [judged(truth, question, option) for option in truth.options]
    good = [each["value"] for each in values if each["in_time"] and each["reached"]]
    return float(max(good) if question.objective == "metric" and truth.higher else min(good))


def runs(truth: Truth, evidence: Evidence, seed: int, methods: tuple[str, ...]) -> list[dict[str, Any]]:
    """One record per question and planner."""
    records = []
    for number, (about, question) in enumerate(questions(truth)):
        best = optimum(truth, question)
        for name in methods:
            planner: Planner = PLANNERS.make(name)
            rng = np.random.default_rng((seed, number))
            plan = planner.plan(question, truth.options, evidence, rng, truth.trial(question))
            option = plan.row.option
            records.append(
                {
                    **about,
                    **judged(truth, question, option),
                    "planner": name,
                    "best": best,
                    "sure": plan.chosen is not None,
                    "option": [option.gpu_type, option.replicas, option.batch],
                }
            )
    return records


def results(tasks: tuple[str, ...], seeds: int, samples: tuple[int, ...] = SAMPLES) -> list[dict[str, Any]]:
    """All records, each with its task, number of samples and seed."""
    sources = source_hash(_SOURCES, setting=("plan_truth.py", "plan_runs.py"))
    found = []
    for task in tasks:
        for count in samples:
            for seed in range(seeds):

                def compute(task: str = task, count: int = count, seed: int = seed) -> dict[str, Any]:
                    truth = truth_of(task)
                    evidence = truth.evidence(count, np.random.default_rng((seed, count)))
                    return {"records": runs(truth, evidence, seed, METHODS)}

                arguments = {"task": task, "samples": count, "seed": seed}
                saved = cell("plan", arguments, sources, compute)["records"]
                found += [{**record, **arguments} for record in saved]
    return found

"""Beside the comparison of planners: sequential profiling, GPU types, speed.

Sequential profiling: one full curve at M0, with its gradient statistics, is given; each short run reveals its option's pass time with 2% noise; which
option is next is ``planning.next_run``'s choice. Counted: runs after which the choice is, and stays, within 5% of the optimum. Asked runs: from 60 samples, then one after another
the short run that the plan says would pay (``planning.next_run``), with 2% noise. GPU types: 120
samples over T4, A100 and RTX 2080 Ti at prices of our own making (0.53, 3.40 and 0.60 per GPU-hour), against the best choice with T4 alone; deadlines are
multiples of the fastest with T4 alone, so they are easier than those of the comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, measure
from benchmarks.plan_runs import _SOURCES, judged, optimum, questions
from benchmarks.plan_truth import TYPES, Truth, truth_of
from coadapt.planning.forecasts import SampleForecast, _fitted
from coadapt.planning.next_run import next_run, worth_running
from coadapt.planning.option_choice import best_of, likeliest_of
from coadapt.planning.option_outlook import columns_of, look
from coadapt.planning.plan_api import Offer, options_of
from coadapt.planning.planners.exact import ExactPlanner
from coadapt.planning.problem import Evidence, Question
from coadapt.prediction.samples import epoch_time, passes
from coadapt.prediction.samples.passes import ByNoise
from coadapt.prediction.samples.sample_table import EpochSample, MetricSample, epoch_table, metric_table

PRICES = {"t4": 0.53, "a100": 3.40, "rtx2080ti": 0.60}
_MOST_RUNS, _PROMISED_RUNS, _NOISE, _NEAR = 16, 12, 0.02, 0.05
_ASKED = 5


def sequential(truth: Truth, question: Question, seed: int) -> tuple[int, float]:
    """Short runs after which the choice is within 5% of the optimum for good (one more than the most, if it is not), and how far
    over the optimum the choice is after the twelfth or the last (infinite where a limit is broken)."""
    rng = np.random.default_rng(seed)
    initial = min(truth.curves)
    curve = truth.curves[initial]
    metrics = metric_table(
        [
            MetricSample(batch=initial, epochs=float(p), metric=float(m))
            for p, m in zip(curve.passes, curve.metric, strict=True)
        ],
        higher_is_better=truth.higher,
    )
    work = ByNoise(
        initial=float(initial),
        epochs=tuple(curve.passes.tolist()),
        phi=tuple(np.maximum(curve.noise, 1e-9).tolist()),
    )
    best, columns = optimum(truth, question), columns_of(question, truth.options)
    samples: list[EpochSample] = []
    done: list[int] = []
    over: list[float] = []
    forecast: SampleForecast | None = None
    while len(done) < _MOST_RUNS:
        i = next_run(question, truth.options, forecast, done)
        if i is None:
            break
        option = truth.options[i]
        done.append(i)
        seen = truth.pass_s[option] * float(np.exp(_NOISE * rng.normal()))
        samples.append(
            EpochSample(batch=option.batch, workers=option.replicas, nodes=option.nodes, epoch_s=seen)
        )
        table = epoch_table(samples, gpus_per_node=TYPES[option.gpu_type][2])
        forecast = SampleForecast(Evidence(epochs={option.gpu_type: table}, metrics=metrics), work)
        outlook = look(question, columns, forecast)
        pick = best_of(question, outlook)
        chosen = truth.options[likeliest_of(question, outlook) if pick is None else pick]
        result = judged(truth, question, chosen)
        holds = result["in_time"] and result["reached"]
        over.append(float(result["value"] / best - 1) if holds else np.inf)
    good = _MOST_RUNS + 1
    for count in range(len(over), 0, -1):
        if over[count - 1] > _NEAR:
            break
        good = count
    return good, over[min(len(over), _PROMISED_RUNS) - 1]


def sequential_runs(tasks: tuple[str, ...], quick: bool) -> dict[str, list[tuple[int, float]]]:
    """By task: runs needed and what is left over the optimum, for questions with a deadline of 1.6 and 2.5 times the fastest."""
    sources = source_hash((*_SOURCES, "planning/next_run.py"), setting=("plan_truth.py", "plan_more.py"))
    found = {}
    for task in tasks:

        def compute(task: str = task) -> dict[str, Any]:
            truth = truth_of(task)
            asked = [
                q
                for about, q in questions(truth)
                if about["objective"] == "cost"
                and about["factor"] in (1.6, 2.5)
                and about["share"] in (0.9, 0.96)
            ]
            return {"runs": [sequential(truth, q, seed) for q in asked for seed in range(1 if quick else 3)]}

        saved = cell("plan-sequential", {"task": task, "quick": quick}, sources, compute)["runs"]
        found[task] = [(int(count), float(left)) for count, left in saved]
    return found


def asked_runs(tasks: tuple[str, ...], quick: bool) -> dict[str, list[list[tuple[float, bool]]]]:
    """By task and question: over the optimum and whether limits hold from 60 samples, after none to five of the short runs that the plan itself asks for."""
    sources = source_hash(
        (*_SOURCES, "planning/next_run.py"), setting=("plan_truth.py", "plan_runs.py", "plan_more.py")
    )
    found = {}
    for task in tasks:

        def compute(task: str = task) -> dict[str, Any]:
            truth = truth_of(task)
            return {
                "runs": [
                    _asked(truth, question, seed)
                    for about, question in questions(truth)
                    if about["objective"] == "cost" and about["share"] in (0.9, 0.96)
                    for seed in range(1 if quick else 3)
                ]
            }

        saved = cell("plan-asked", {"task": task, "quick": quick}, sources, compute)["runs"]
        found[task] = [[(float(over), bool(held)) for over, held in run] for run in saved]
    return found


def _asked(truth: Truth, question: Question, seed: int) -> list[tuple[float, bool]]:
    rng, best = np.random.default_rng((seed, 1)), optimum(truth, question)
    evidence = truth.evidence(60, np.random.default_rng((seed, 60)))
    name = truth.types[0]
    found: list[tuple[float, bool]] = []
    while len(found) <= _ASKED:
        forecast = SampleForecast(evidence)
        plan = ExactPlanner(forecast).plan(question, truth.options, evidence, rng)
        result = judged(truth, question, plan.row.option)
        found.append((result["value"] / best - 1, bool(result["in_time"] and result["reached"])))
        run = worth_running(plan, forecast)
        if run is None:
            break
        option, table = truth.options[run.row], evidence.epochs[name]
        seen = truth.pass_s[option] * float(np.exp(_NOISE * rng.normal()))
        sample = EpochSample(batch=option.batch, workers=option.replicas, nodes=option.nodes, epoch_s=seen)
        more = epoch_table([*table.samples, sample], gpus_per_node=table.gpus_per_node)
        evidence = Evidence(epochs={name: more}, metrics=evidence.metrics)
    # where it asks for no more, more runs are not made
    return found[: _ASKED + 1] + [found[-1]] * (_ASKED + 1 - len(found))


def types(tasks: tuple[str, ...], quick: bool) -> list[tuple[float, bool, float]]:
    """Per question: cost over the optimum of all types, whether limits hold, optimum with T4 alone over that of all."""
    sources = source_hash(_SOURCES, setting=("plan_truth.py", "plan_more.py"))
    found = []
    for task in tasks:

        def compute(task: str = task) -> dict[str, Any]:
            truth, one = truth_of(task, tuple(TYPES)), truth_of(task)
            results = []
            for seed in range(1 if quick else 3):
                evidence = truth.evidence(120, np.random.default_rng(seed))
                for about, base in questions(one):
                    if about["objective"] != "cost":
                        continue
                    question = Question(
                        target=base.target,
                        higher_is_better=truth.higher,
                        deadline_s=base.deadline_s,
                        prices=PRICES,
                        whole_passes=False,
                    )
                    plan = ExactPlanner().plan(question, truth.options, evidence, np.random.default_rng(seed))
                    paid = {o: _paid(truth, question, o) for o in truth.options}
                    best = min(p for p in paid.values() if p is not None)
                    alone = min(p for o, p in paid.items() if p is not None and o.gpu_type == "t4")
                    mine = paid[plan.row.option]
                    results.append(
                        [0.0 if mine is None else mine / best - 1, mine is not None, alone / best - 1]
                    )
            return {"results": results}

        found += cell("plan-types", {"task": task, "quick": quick}, sources, compute)["results"]
    return [(float(a), bool(b), float(c)) for a, b, c in found]


def _paid(truth: Truth, question: Question, option: Any) -> float | None:
    result = judged(truth, question, option)
    if not (result["in_time"] and result["reached"]):
        return None
    return float(result["value"]) * PRICES[option.gpu_type] / 3600


def speed() -> tuple[float, float]:
    """CPU seconds of a plan from 240 samples, and of a frontier over 4 types x 64 sizes x 50 batch sizes."""
    truth = truth_of("cifar10")
    question = questions(truth)[2][1]
    evidence = truth.evidence(240, np.random.default_rng(1))
    batches = [int(b) for b in np.unique(np.geomspace(128, 4096, 50).round())]
    offers = [
        Offer(gpu_type=name, replicas=tuple(range(1, 65)), gpus_per_node=8)
        for name in ("t4", "a100", "v100", "a10")
    ]
    many = options_of(offers, batches)
    few = truth.evidence(60, np.random.default_rng(2))

    def fresh(options: Any, known: Evidence) -> None:
        # nothing remembered: what a user waits for
        epoch_time._fit.cache_clear()
        passes._fitted.cache_clear()
        _fitted.cache_clear()
        ExactPlanner().plan(question, options, known, np.random.default_rng(0))

    figures = measure(
        {"plan": lambda: fresh(truth.options, evidence), "frontier": lambda: fresh(many, few)}, repeats=3
    )
    return figures["plan"].median_cpu_s, figures["frontier"].median_cpu_s


def more_rows(tasks: tuple[str, ...], quick: bool) -> list[Row]:
    """Promises beside figures."""
    needed = sequential_runs(tasks, quick)
    every = [count for pairs in needed.values() for count, _ in pairs]
    left = [over for pairs in needed.values() for _, over in pairs]
    note = ", ".join(f"{task} {np.median([count for count, _ in pairs]):g}" for task, pairs in needed.items())
    note += f"; not within {_MOST_RUNS} runs: {np.mean([c > _MOST_RUNS for c in every]):.0%}"
    note += f"; over the optimum after {_PROMISED_RUNS} runs: median {100 * np.median(left):.1f}%, limits broken {np.mean(np.isinf(left)):.0%}"
    rows = [
        Row("short runs until within 5% of the optimum, median", float(np.median(every)), 12, None, "", note)
    ]
    asked = asked_runs(tasks, quick)
    print(
        "\nover the optimum from 60 samples, after 0 to 5 of the short runs that the plan asks for (limits broken)"
    )
    for task, runs in [*asked.items(), ("all", [run for some in asked.values() for run in some])]:
        shown = []
        for count in range(_ASKED + 1):
            at = [run[count] for run in runs]
            over = 100 * np.mean([each for each, holds in at if holds])
            shown.append(f"{over:>9.1f}% ({np.mean([not holds for _, holds in at]):.0%})")
        print(f"{task:<14}" + "".join(shown))
    typed = types(tasks, quick)
    held = [over for over, holds, _ in typed if holds]
    note = f"limits broken {1 - len(held) / len(typed):.1%}; the best with T4 alone is {100 * np.mean([a for *_, a in typed]):.1f}% more expensive than the best"
    rows.append(
        Row(
            "three GPU types: cost over the true optimum, mean",
            100 * float(np.mean(held)),
            5.0,
            None,
            "%",
            note,
        )
    )
    plan_s, frontier_s = speed()
    rows.append(Row("plan from 240 samples, CPU", plan_s, 1.0, None, " s"))
    rows.append(Row("frontier, 4 types x 64 sizes x 50 batches, CPU", frontier_s, 1.0, None, " s"))
    return rows

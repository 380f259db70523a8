"""How long a decision takes: CPU time on one core, the state in memory.

Half of the jobs run, half wait, all have just been measured. "All curves rebuilt": every curve is made anew from its job's
fit, and all that is asked of it; fits themselves are step 2's business (a fit is made when measurements have moved)
and are kept, as in a running scheduler; beside it the same with every fit made anew. Placement is not in it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.measure import Row, measure
from benchmarks.policy_runs import run
from benchmarks.published import truths
from benchmarks.smoke import either, few
from coadapt.configure import best_batch
from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    Configuration,
    JobStarted,
    JobSubmitted,
    Measurement,
    NodeJoined,
    Record,
    StartJob,
    parse_cluster,
)
from coadapt.placement import TidyPlacer
from coadapt.policies._base import Memory
from coadapt.policies.coadapt.knapsack import Problem, exact, priced, solve
from coadapt.policies.coadapt.offers import offers
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.prediction import gradient_noise
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time import node_aware
from coadapt.scheduler import FittedCurves, SchedulerState, cycle
from coadapt.simulation.truth.profiles import spec_for


def a_state(jobs: int, cluster: str, seed: int = 0) -> SchedulerState:
    """So many jobs of the measured tasks at random points of their lives, each measured in a few configurations."""
    rng = np.random.default_rng(seed)
    state, seq = SchedulerState(), 0

    def take(event: AnyEvent) -> None:
        nonlocal seq
        state.apply(Record(seq=seq, at=float(seq), event=event))
        seq += 1

    nodes = parse_cluster(cluster).nodes
    for node in nodes:
        take(NodeJoined(node=node))
    tasks = [name for name in sorted(truths()) if name != "ncf"]
    for number in range(jobs):
        if number == jobs // 2:
            _start(state, take)
        task = tasks[rng.integers(len(tasks))]
        truth, name = truths()[task], f"{task}-{number}"
        limits = truth.limits(truth.gpu_types[0])
        take(JobSubmitted(job=name, spec=spec_for(name, truth, task, replicas=1, batch=limits.initial)))
        job = state.jobs[name]
        epoch = int(rng.integers(truth.epochs))
        for replicas in (1, 2, 4, 8)[: int(rng.integers(1, 5))]:
            shape = (replicas,) if replicas <= 4 else (4,) * (replicas // 4)
            for _ in range(3):
                atomic = int(rng.integers(limits.per_gpu_min, limits.per_gpu_max + 1))
                step_s, sync_s = truth.step(shape, atomic, "")
                grad = truth.gradients(min(atomic * replicas, limits.max), epoch)
                config = Configuration(nodes=len(shape), replicas=replicas, atomic_batch=atomic)
                work = truth.epoch_marks()[epoch] * limits.initial
                job.measure(
                    Measurement(
                        config=config,
                        step_s=step_s,
                        sync_s=sync_s,
                        grad_sqr=grad[0],
                        grad_var=grad[1],
                        work=work * float(rng.uniform(0.2, 0.99)),
                    ),
                    attempt=1,
                    at=state.now,
                )
    return state


def _start(state: SchedulerState, take: Callable[[AnyEvent], None]) -> None:
    """Whoever gets something runs from now on."""
    decision, _ = cycle.decide(
        state, CoadaptPolicy(), TidyPlacer(), FittedCurves().of(state), seed=0, warm=None
    )
    take(decision)
    placed = [name for name, target in decision.targets.items() if target]
    for number, name in enumerate(placed, 1):
        start = StartJob(id=number, job=name, attempt=1, placement=decision.targets[name])
        take(ActionsIssued(decision=decision.decision, actions=(start,)))
        take(JobStarted(job=name, attempt=1))


def speed_rows() -> list[Row]:
    """Decisions of 160 jobs on 64 GPUs and of 5,000 on 10,000; solvers against each other; a whole workload."""
    rows = []
    small = a_state(either(10, 160), "16x4")
    policy = CoadaptPolicy()
    rows += _decision_rows("160 jobs x 64 GPUs", small, policy, 20.0, 5.0)
    large = a_state(either(20, 5000), either("20x4", "2500x4"), seed=1)
    rows += _decision_rows("5,000 jobs x 10,000 GPUs", large, policy, 2000.0, 500.0, repeats=1)
    rows.append(_quality_row())
    growth_table(policy)
    whole = run("coadapt", "tuned-1.0x-1")
    rows.append(Row("a whole 160-job workload, CPU", whole["cpu_s"], 10.0, unit=" s"))
    return rows


def _decision_rows(
    what: str,
    state: SchedulerState,
    policy: CoadaptPolicy,
    must_ms: float,
    solver_ms: float,
    repeats: int = 15,
) -> list[Row]:
    repeats = either(1, repeats)
    warm = FittedCurves()
    decide(policy, state, warm)

    def rebuilt() -> None:
        best_batch.throughputs.cache_clear()
        gradient_noise._carried_over.cache_clear()
        decide(policy, state, FittedCurves())

    def refitted() -> None:
        step_time.step_time_model().forget()
        node_aware._support.cache_clear()
        for job in state:
            job.table.fitted.clear()
        rebuilt()

    found = offers(state, FittedCurves().of(state), list(state), growth=policy.growth)
    cost_s = np.full(len(found.jobs), 30.0)
    value, _ = policy._value(found, cost_s, state.now, {})
    problem = Problem(value, found.kind, found.size, found.capacity)
    figures = measure({"all": rebuilt, "solver": lambda: solve(problem)}, repeats=repeats)
    # separate: after many fits the processor's caches hold nothing that a decision needs
    figures |= measure({"fits": refitted}, repeats=repeats)
    return [
        Row(
            f"{what}: a decision, all curves rebuilt",
            1000 * figures["all"].median_cpu_s,
            must_ms,
            unit=" ms",
            note=f"with every fit made anew {1000 * figures['fits'].median_cpu_s:.0f} ms",
        ),
        Row(f"{what}: the solver alone", 1000 * figures["solver"].median_cpu_s, solver_ms, unit=" ms"),
    ]


def decide(policy: CoadaptPolicy, state: SchedulerState, curves: FittedCurves) -> None:
    """One decision; nothing is applied."""
    policy.decide(state, curves.of(state), Memory(), lambda: np.random.default_rng(0))


def _quality_row() -> Row:
    """The large-cluster solver against the exact one, on small clusters."""
    short = []
    policy = CoadaptPolicy()
    for seed in range(either(1, 20)):
        state = a_state(10 + 8 * seed, "16x4", seed=100 + seed)
        found = offers(state, FittedCurves().of(state), list(state), growth=policy.growth)
        value, _ = policy._value(found, np.full(len(found.jobs), 30.0), state.now, {})
        problem = Problem(value, found.kind, found.size, found.capacity)
        rows = np.arange(len(value))
        best, near = exact(problem).choice, priced(problem).choice
        short.append(1 - value[rows, near].sum() / value[rows, best].sum())
    note = f"worst {max(short):.2%}"
    return Row(
        "priced solver below the exact one, mean", 100 * float(np.mean(short)), 0.5, unit="%", note=note
    )


def growth_table(policy: CoadaptPolicy) -> None:
    """Time by jobs and by GPUs."""
    print("\nCPU time of the solver / of a decision with all curves rebuilt, ms:")
    for jobs, cluster in few(
        (
            (either(10, 160), "16x4"),
            (320, "16x4"),
            (640, "160x4"),
            (1250, "625x4"),
            (2500, "1250x4"),
            (5000, "2500x4"),
            (1250, "2500x4"),
            (5000, "625x4"),
        )
    ):
        state = a_state(jobs, cluster, seed=2)
        all_row, solver_row = _decision_rows("", state, policy, 1e9, 1e9, repeats=1)
        print(f"  {jobs:>5} jobs, {state.gpus:>6} GPUs: {solver_row.figure:>8.1f} / {all_row.figure:>8.1f}")

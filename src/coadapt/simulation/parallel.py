"""Runs simulations in parallel, each in a process of its own; results and their order do not depend on the number.

Processes are spawned, not forked: a fork copies locks that threads of the parent may hold. The workload and the past
jobs are sent to each process once, when it starts.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from ctypes import c_int
from dataclasses import dataclass
from typing import Any

from coadapt.errors import CoadaptError
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.progress import Bars
from coadapt.report import Summary, completion_times
from coadapt.simulation.case import Case, run_case
from coadapt.simulation.result import Result
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.traces._base import Workload
from coadapt.simulation.truth._base import Truth
from coadapt.simulation.workload import load_truths


@dataclass(frozen=True, slots=True)
class Task:
    """A prepared case. ``workload``: index of its workload; ``keep``: return the whole result, not only its numbers."""

    case: Case
    workload: int
    keep: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a comparison."""

    case: Case
    summary: Summary
    #: JCT of every job that finished.
    jct_s: Mapping[str, float]
    result: Result | None


class PoolError(CoadaptError):
    """A process of the pool died: killed from outside, usually for want of memory."""


def run_all(
    tasks: Sequence[Task],
    workloads: Sequence[Workload],
    truths: Mapping[str, Truth],
    scenario: Scenario,
    *,
    pool: Pool | None = None,
    processes: int,
    bars: Bars,
) -> list[Outcome]:
    """Runs every task and returns the outcomes in the same order.

    Args:
        tasks: Prepared cases.
        workloads: Workloads that tasks refer to by index.
        truths: Ground truth by profile, for runs in this process.
        scenario: Where other processes read the ground truth from.
        pool: Past jobs that are known from the start.
        processes: Number of processes; with 1, everything runs in this process.
        bars: Progress bars.

    Raises:
        PoolError: A process was killed.
    """
    if min(processes, len(tasks)) <= 1:
        return [_run_here(task, workloads[task.workload], truths, pool, bars) for task in tasks]
    context = multiprocessing.get_context("spawn")
    done: Any = context.RawArray(c_int, len(tasks))
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(
        min(processes, len(tasks)),
        mp_context=context,
        initializer=_begin,
        initargs=(tuple(workloads), scenario, pool, done),
    )
    try:
        with _children_ignore_interrupts():
            futures = [executor.submit(_run_there, number, task) for number, task in enumerate(tasks)]
        _watch(futures, tasks, workloads, done, bars)
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise PoolError("a process of the comparison was killed; try fewer at once (--processes 1)") from None
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        executor.shutdown()


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal; the parent alone decides and ends the others.

    A signal that is blocked stays blocked in a process that is started, from its first instruction on; here it waits, and
    is delivered when the block ends. (Ignored instead, a Ctrl-C while processes start would be lost.)
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(
    futures: Sequence[Future[Outcome]],
    tasks: Sequence[Task],
    workloads: Sequence[Workload],
    done: Any,
    bars: Bars,
) -> None:
    waiting = set(futures)
    while waiting:
        ended, waiting = wait(waiting, timeout=0.2 if bars.seen else None, return_when=FIRST_COMPLETED)
        for future in ended:
            future.result()
        bars.update("all runs", len(futures) - len(waiting), len(futures))
        for number, task in enumerate(tasks):
            if done[number]:
                bars.update(_title(task.case), done[number], len(workloads[task.workload].jobs))


def _title(case: Case) -> str:
    return f"{case.name}, seed {case.seed}" if case.seed else case.name


def _run_here(
    task: Task, workload: Workload, truths: Mapping[str, Truth], pool: Pool | None, bars: Bars
) -> Outcome:
    total, title = len(workload.jobs), _title(task.case)
    return _outcome(
        task, run_case(task.case, workload, truths, pool=pool, on_finished=lambda: bars.advance(title, total))
    )


def _outcome(task: Task, result: Result) -> Outcome:
    jct_s = completion_times(result.history)
    return Outcome(task.case, result.summary, jct_s, result if task.keep else None)


# -- inside a process of the pool ---------------------------------------------------------------------------


class _Process:
    workloads: tuple[Workload, ...] = ()
    truths: Mapping[str, Truth] = {}
    pool: Pool | None = None
    done: Any = None


def _begin(workloads: tuple[Workload, ...], scenario: Scenario, pool: Pool | None, done: Any) -> None:
    _Process.workloads, _Process.truths = workloads, load_truths(scenario)
    _Process.pool, _Process.done = pool, done


def _run_there(number: int, task: Task) -> Outcome:
    def count() -> None:
        _Process.done[number] += 1

    workload = _Process.workloads[task.workload]
    return _outcome(
        task, run_case(task.case, workload, _Process.truths, pool=_Process.pool, on_finished=count)
    )

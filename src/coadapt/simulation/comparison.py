"""Comparison of policies and clusters on one workload: entrants, runs, ratios of completion times, and output files.

An entrant is a policy with checked options; every entrant runs on every cluster.

Runs are spread over processes, which are spawned, not forked: a fork copies locks that threads of the parent may hold.
The workload and the past jobs are sent to each process once, when it starts. Results and their order do not depend on
the number of processes.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from ctypes import c_int
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.model import Cluster, format_cluster
from coadapt.plugins import assignments, has_option
from coadapt.policies import Policy, traits_of
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.progress import Bars
from coadapt.report import (
    Column,
    LowerBound,
    Ratio,
    Run,
    Summary,
    bound_sentence,
    compare,
    completion_times,
    render,
)
from coadapt.report.output_files import fresh_directory
from coadapt.simulation.case import Case, nothing_to_choose, prepare, run_case
from coadapt.simulation.recorded_run import RecordedCheck, RecordedRun, as_recorded, check_recorded
from coadapt.simulation.result import Result, data_frame, plain, write_csv
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.traces._base import Workload
from coadapt.simulation.truth._base import Truth
from coadapt.simulation.workload import Trace, load_pool, load_truths, load_workload, only_type

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Finished runs. A name stands for one policy on one cluster, run once per seed."""

    source: str
    outcomes: Sequence[Outcome]
    #: The run that ratios are relative to.
    reference: str
    #: The run that the trace recorded, and its replay on the first cluster.
    recorded: RecordedRun | None = None
    recorded_check: RecordedCheck | None = None
    notes: Sequence[str] = ()
    #: Lower bounds on the average JCT, by cluster in shorthand and number of jobs; see ``simulation.bounds``.
    bounds: Mapping[tuple[str, int], LowerBound] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line; the jobs of every run would fill pages."""
        return f"<Comparison of {', '.join(self.names) or 'nothing'} on {self.source}>"

    @property
    def names(self) -> list[str]:
        """Every run's name, in order, the reference where it was asked for."""
        return list(dict.fromkeys(outcome.case.name for outcome in self.outcomes))

    @property
    def recorded_name(self) -> str:
        """Label of the recorded run; its replay may be among the entrants."""
        return "recorded" if "recorded" not in self.names else "as recorded"

    @property
    def ratios(self) -> dict[str, Ratio]:
        """Average JCT relative to the reference's, with paired 95% intervals over jobs."""
        runs: dict[str, list[Mapping[str, float]]] = {name: [] for name in self.names}
        for outcome in self.outcomes:
            runs[outcome.case.name].append(outcome.jct_s)
        if self.recorded is not None and self.recorded.jct_s:
            runs[self.recorded_name] = [self.recorded.jct_s]
        return compare(runs, self.reference)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One plain row per run and seed."""
        return [
            {
                "name": outcome.case.name,
                "cluster": format_cluster(outcome.case.cluster),
                "seed": outcome.case.seed,
                **plain(outcome.summary),
                **({"vs_bound": self._vs_bound(outcome, outcome.summary)} if self.bounds else {}),
            }
            for outcome in self.outcomes
        ]

    def vs_bound(self, name: str) -> float | None:
        """A run's average JCT to its lower bound; None where there is none, or where jobs did not finish."""
        outcome = next(outcome for outcome in self.outcomes if outcome.case.name == name)
        return self._vs_bound(outcome, self.mean(name))

    def _vs_bound(self, outcome: Outcome, numbers: Summary) -> float | None:
        bound = self.bounds.get((format_cluster(outcome.case.cluster), outcome.summary.num_jobs))
        # the bound is for GPUs that one job has at a time
        if (
            bound is None
            or traits_of(outcome.case.make_policy()).shares_gpus
            or numbers.num_unfinished
            or numbers.avg_jct_s is None
        ):
            return None
        return numbers.avg_jct_s / bound.avg_jct_s

    @property
    def bound_sentences(self) -> list[str]:
        """For each bound, what it says about the best run that it holds for."""
        sentences = []
        for (cluster, jobs), bound in self.bounds.items():
            ratios = {
                outcome.case.name: ratio
                for outcome in self.outcomes
                if (format_cluster(outcome.case.cluster), outcome.summary.num_jobs) == (cluster, jobs)
                and (ratio := self.vs_bound(outcome.case.name)) is not None
            }
            if ratios:
                best = min(ratios, key=lambda name: ratios[name])
                sentences.append(bound_sentence(bound, best, ratios[best] * bound.avg_jct_s))
        return sentences

    def mean(self, name: str) -> Summary:
        """The numbers of a run, averaged over its seeds."""
        rows = [plain(outcome.summary) for outcome in self.outcomes if outcome.case.name == name]
        mean: dict[str, Any] = {}
        for key in rows[0]:
            values = [row[key] for row in rows if row[key] is not None]
            mean[key] = sum(values) / len(values) if values else None
        return Summary(**mean)

    def plain(self) -> dict[str, Any]:
        """Everything as plain data: what ``--json`` prints."""
        ratios = {name: msgspec.structs.asdict(ratio) for name, ratio in self.ratios.items()}
        check = None if self.recorded_check is None else msgspec.structs.asdict(self.recorded_check)
        return {
            "trace": self.source,
            "reference": self.reference,
            "runs": self.runs,
            "ratios": ratios,
            "recorded": None if self.recorded is None else self.recorded.plain(),
            "recorded_check": check,
            "bounds": [
                {"cluster": cluster, **msgspec.structs.asdict(bound), "gap": bound.gap}
                for (cluster, _), bound in self.bounds.items()
            ],
        }

    def to_pandas(self) -> pd.DataFrame:
        """``runs`` as a data frame; needs pandas."""
        return data_frame(self.runs)

    def write(self, directory: str | Path, *, force: bool = False) -> Path:
        """Writes compare.json, runs.csv and report.html."""
        with fresh_directory(Path(directory), force=force, by="force=True") as staging:
            self.write_files(staging)
        return Path(directory)

    def write_files(self, directory: Path) -> None:
        """Writes the result files into an existing directory."""
        encoded = msgspec.json.format(msgspec.json.encode(self.plain()), indent=2)
        (directory / "compare.json").write_bytes(encoded + b"\n")
        write_csv(directory / "runs.csv", self.runs)
        (directory / "report.html").write_text(self.page(), encoding="utf-8")

    @property
    def columns(self) -> list[Column]:
        """The table: the recorded run, then every run, averaged over its seeds, the reference first."""
        names = sorted(self.names, key=lambda name: name != self.reference)
        columns = [
            Column(name, {**plain(self.mean(name)), "vs_bound": self.vs_bound(name)}, number)
            for number, name in enumerate(names)
        ]
        if self.recorded is not None:
            columns.insert(0, Column(self.recorded_name, self.recorded.plain()))
        return columns

    def page(self) -> str:
        """The report. Its charts show the first seed, its table the means over all."""
        results = [outcome.result for outcome in self.outcomes if outcome.result is not None]
        # the report takes its first run as the reference
        results.sort(key=lambda result: result.name != self.reference)
        shown = [
            Run(result.name, result.history, result.summary, result.rho, format_cluster(result.cluster))
            for result in results
        ]
        notes = list(self.notes)
        seeds = len({outcome.case.seed for outcome in self.outcomes})
        if seeds > 1:
            notes.append(
                f"The table shows means over {seeds} seeds; charts and jobs are those of seed {results[0].seed}."
            )
        return render(
            shown,
            title=f"Policies compared: {Path(self.source).name}",
            notes=notes,
            columns=self.columns,
            ratios=self.ratios if len(self.columns) > 1 else {},
            recorded="" if self.recorded_check is None else self.recorded_check.sentence,
            bound=" ".join(self.bound_sentences),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A policy in a comparison, by the name users see."""

    name: str
    policy: str | Policy
    texts: Mapping[str, str]
    values: Mapping[str, Any]


def parse_entrants(policies: str, settings: tuple[str, ...]) -> list[Entrant]:
    """The policies of ``fifo,pollux:p=0:patience=0`` with the settings that are theirs."""
    texts = [text.strip() for text in policies.split(",") if text.strip()]
    names = [text.partition(":")[0] for text in texts]
    unused = assignments(settings)
    given = dict(unused)
    found = []
    for text, name in zip(texts, names, strict=True):
        options: dict[str, str] = {}
        for setting, value in given.items():
            owner, dot, option = setting.rpartition(".")
            if owner.replace("_", "-") == name or (not dot and has_option(name, option)):
                options[option] = value
                unused.pop(setting, None)
        options |= assignments(_own_settings(text))
        found.append(Entrant(name=text, policy=name, texts=options, values={}))
    if unused:
        raise InputError(f"none of the policies {', '.join(names)} has an option {next(iter(unused))!r}")
    return found


def _own_settings(text: str) -> list[str]:
    """``patience=3`` and ``quotas=ada:2`` of ``coadapt:patience=3:quotas=ada:2``: a part without "=" belongs to the option before."""
    found: list[str] = []
    for part in text.split(":")[1:]:
        if "=" in part or not found:
            found.append(part)
        else:
            found[-1] += f":{part}"
    return found


def compare_entrants(
    trace: Trace,
    entrants: Sequence[Entrant],
    clusters: Sequence[Cluster],
    scenario: Scenario,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    reference: str | None = None,
    processes: int = 1,
    recorded_check: bool = True,
    bars: Bars | None = None,
    on_ready: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Checks all inputs, replays the recorded run, and runs every entrant on every cluster with every seed.

    Args:
        trace: Path of a trace, or a workload.
        entrants: Policies with their options.
        clusters: Clusters to run on.
        scenario: How to read the trace, and the simulated world.
        seeds: Runs per entrant and cluster.
        first_seed: Seed of the first run; the others follow it.
        reference: Name of the policy that ratios are relative to, on the first cluster; None: the first entrant.
        processes: Number of processes that run simulations in parallel.
        recorded_check: Replay the run that the trace recorded, as a check of the cluster.
        bars: Progress bars; None: no progress is shown.
        on_ready: Called before the first run, with a comparison that has no runs yet.
    """
    _check_names(entrants, clusters, seeds, reference)
    pool, truths = load_pool(scenario), load_truths(scenario)
    tasks: list[Task] = []
    workloads: list[Workload] = []
    notes: dict[str, None] = {}
    loaded: dict[str, tuple[Workload, list[str]]] = {}
    for cluster in clusters:
        gpu_type = only_type(cluster)
        if gpu_type not in loaded:
            loaded[gpu_type] = load_workload(trace, scenario, truths, gpu_type)
        workload, read = loaded[gpu_type]
        notes |= dict.fromkeys(read)
        for entrant in entrants:
            name = entrant.name if len(clusters) == 1 else f"{entrant.name} on {format_cluster(cluster)}"
            case = Case(
                name=name,
                policy=entrant.policy,
                cluster=cluster,
                scenario=scenario,
                texts=entrant.texts,
                values=entrant.values,
                seed=first_seed,
            )
            fit, dropped = prepare(case, workload, truths)
            notes |= dict.fromkeys(dropped)
            if not any(known is fit for known in workloads):
                workloads.append(fit)
            index = next(n for n, known in enumerate(workloads) if known is fit)
            for seed in range(first_seed, first_seed + seeds):
                tasks.append(Task(replace(case, seed=seed), index, keep=seed == first_seed))
    first = next(iter(loaded.values()))[0]
    base = next(task.case.name for task in tasks if reference is None or _is(task.case, reference, clusters))
    notes |= dict.fromkeys(nothing_to_choose(first, [task.case for task in tasks]))
    about = Comparison(
        source=first.source,
        outcomes=(),
        reference=base,
        recorded=as_recorded(workloads[0]),
        recorded_check=check_recorded(first, clusters[0], scenario, truths) if recorded_check else None,
        notes=tuple(notes),
    )
    if on_ready is not None:
        on_ready(about)
    outcomes = run_all(
        tasks,
        workloads,
        truths,
        scenario,
        pool=pool,
        processes=processes,
        bars=bars or Bars(quiet=True),
    )
    return replace(about, outcomes=outcomes)


def _is(case: Case, reference: str, clusters: Sequence[Cluster]) -> bool:
    return case.name in (reference, f"{reference} on {format_cluster(clusters[0])}")


def _check_names(
    entrants: Sequence[Entrant], clusters: Sequence[Cluster], seeds: int, reference: str | None
) -> None:
    names = [entrant.name for entrant in entrants]
    if not entrants or not clusters or seeds < 1:
        raise InputError("a comparison needs at least one policy, one cluster and one seed")
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"policy {name!r} is given twice; give each different options, for example pollux,pollux:p=0"
            )
    shorthands = [format_cluster(cluster) for cluster in clusters]
    for shorthand in shorthands:
        if shorthands.count(shorthand) > 1:
            raise InputError(f"cluster {shorthand!r} is given twice")
    if reference is not None and reference not in names:
        raise InputError(f"the reference {reference!r} is not among the policies: {', '.join(names)}")


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
        raise PoolError(
            "a process of the comparison was killed, probably for lack of memory; run fewer at once, for example --jobs 1"
        ) from None
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

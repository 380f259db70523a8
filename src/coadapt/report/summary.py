"""The summary of one run, ratios between runs, and the table of both.

Percentiles are numpy's linear ones. The interval of a ratio comes from a paired bootstrap over jobs: jobs are drawn
with replacement, the same ones for both policies, so that what makes a job long under every policy does not widen the
interval. The table has one row per number and one column per run; of more than four runs it has one row per run, in one
table per group of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.report.cluster_history import History
from coadapt.report.fairness import finish_time_fairness
from coadapt.units import format_duration

#: Draws held in memory at once; 82,247 jobs x 2,000 resamples at once would be 1.3 GB.
_BLOCK = 4_000_000


class Summary(Fact, frozen=True):
    """The numbers of one run; None where a number cannot be known. No defaults: every key is always there."""

    num_jobs: int
    #: Jobs that succeeded; all others (failed, cancelled, still there) are unfinished.
    num_finished: int
    num_unfinished: int
    avg_jct_s: float | None
    p50_jct_s: float | None
    p90_jct_s: float | None
    p99_jct_s: float | None
    #: Mean of the slowest tenth of the jobs, at least one.
    slowest10_jct_s: float | None
    #: First submission to last finish.
    makespan_s: float | None
    gpu_hours: float
    #: GPU-seconds held / GPU-seconds available, over the makespan.
    utilisation: float | None
    num_restarts: int
    #: Share of the GPU time held in which jobs started, resized or stopped.
    restart_share: float | None
    #: Seconds without GPUs between submission and finish.
    avg_wait_s: float | None
    p90_wait_s: float | None
    avg_efficiency: float | None
    rho_mean: float | None
    rho_max: float | None
    #: Share of jobs with rho > 1.
    rho_unfair_share: float | None
    decisions: int
    #: CPU time of a decision, on average.
    decision_ms: float | None
    cpu_s: float | None
    num_deadlines: int
    #: Jobs that did not succeed by their deadline, those that never finished among them.
    num_deadlines_missed: int


def summarise(
    history: History,
    *,
    rho: Mapping[str, float] | None = None,
    decision_cpu_s: float | None = None,
    cpu_s: float | None = None,
) -> Summary:
    """Computes the summary of a run.

    Args:
        history: The run.
        rho: Finish-time fairness by job, from ``finish_time_fairness``; None: that of rigid jobs.
        decision_cpu_s: CPU time of all decisions; None: not known.
        cpu_s: CPU time of the whole run; None: not known.
    """
    history.settle()
    jobs = history.jobs.values()
    finished = [job for job in jobs if job.jct_s is not None]
    jct = np.array([job.jct_s for job in finished], dtype=np.float64)
    waits = np.array([job.waited_s for job in finished])
    fairness = np.array(list((finish_time_fairness(history) if rho is None else rho).values()))
    held = sum(job.held_gpu_s for job in jobs)
    rated = sum(job.rated_gpu_s for job in jobs)
    slowest = np.sort(jct)[::-1][: max(1, round(len(jct) / 10))]
    makespan = None
    if history.first_submitted_at is not None and history.last_ended_at is not None:
        makespan = history.last_ended_at - history.first_submitted_at
    return Summary(
        num_jobs=len(history.jobs),
        num_finished=len(finished),
        num_unfinished=len(history.jobs) - len(finished),
        avg_jct_s=_mean(jct),
        p50_jct_s=_percentile(jct, 50),
        p90_jct_s=_percentile(jct, 90),
        p99_jct_s=_percentile(jct, 99),
        slowest10_jct_s=_mean(slowest),
        makespan_s=makespan,
        gpu_hours=held / 3600,
        utilisation=_ratio(history.span_held_gpu_s, history.span_available_gpu_s),
        num_restarts=sum(job.restarts for job in jobs),
        restart_share=_ratio(sum(job.changing_gpu_s for job in jobs), held),
        avg_wait_s=_mean(waits),
        p90_wait_s=_percentile(waits, 90),
        avg_efficiency=_ratio(sum(job.useful_gpu_s for job in jobs), rated),
        rho_mean=_mean(fairness),
        rho_max=float(fairness.max()) if len(fairness) else None,
        rho_unfair_share=_mean((fairness > 1 + 1e-9).astype(np.float64)),
        decisions=history.decisions,
        decision_ms=None if decision_cpu_s is None else _ratio(decision_cpu_s * 1000, history.decisions),
        cpu_s=cpu_s,
        num_deadlines=sum(job.spec.deadline_s is not None for job in jobs),
        num_deadlines_missed=sum(job.missed_deadline for job in jobs),
    )


def completion_times(history: History) -> dict[str, float]:
    """JCT of every job that succeeded, in seconds: what ``compare`` takes."""
    return {job.id: job.jct_s for job in history.jobs.values() if job.jct_s is not None}


class Ratio(Fact, frozen=True):
    """Average JCT over that of the reference, with its 95% interval; below 1 is faster."""

    ratio: float
    low: float
    high: float
    #: Jobs that finished under both; only these are compared.
    jobs: int


def compare(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    reference: str,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Ratio]:
    """Computes each policy's average JCT relative to that of the reference, with an interval.

    Args:
        runs: For each policy, the JCT by job of every seed it was run with. A job's JCT is averaged over the seeds in
            which it finished before jobs are drawn.
        reference: Name of the policy in the denominator.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """
    if reference not in runs:
        raise InputError(f"no run called {reference!r} to compare with; there are {', '.join(sorted(runs))}")
    means = {name: _per_job(seeds) for name, seeds in runs.items()}
    base = means[reference]
    ratios: dict[str, Ratio] = {}
    for name, own in means.items():
        common = sorted(own.keys() & base.keys())
        if common:
            pairs = np.array([[own[job], base[job]] for job in common])
            ratios[name] = _bootstrap(pairs, resamples, np.random.default_rng(seed))
    return ratios


def _per_job(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    collected: dict[str, list[float]] = {}
    for one in seeds:
        for job, jct in one.items():
            collected.setdefault(job, []).append(jct)
    return {job: sum(values) / len(values) for job, values in collected.items()}


def _bootstrap(pairs: npt.NDArray[np.float64], resamples: int, rng: np.random.Generator) -> Ratio:
    count = len(pairs)
    own, base = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    if np.array_equal(own, base):  # the reference itself
        return Ratio(ratio=1.0, low=1.0, high=1.0, jobs=count)
    drawn = np.empty(resamples)
    rows = max(1, _BLOCK // count)
    for first in range(0, resamples, rows):
        picks = rng.integers(count, size=(min(rows, resamples - first), count), dtype=np.int32)
        drawn[first : first + rows] = own[picks].sum(axis=1) / base[picks].sum(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Ratio(ratio=float(own.sum() / base.sum()), low=float(low), high=float(high), jobs=count)


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: npt.NDArray[np.float64], share: float) -> float | None:
    return float(np.percentile(values, share)) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


Number = float | int | None
#: More runs than this stand below each other.
ACROSS = 4


@dataclass(frozen=True, slots=True)
class Column:
    """The numbers of one run by the keys of ``Summary``; keys that nobody knows may be missing."""

    name: str
    numbers: Mapping[str, Number]
    #: The run's place in the charts; None if it is in none.
    colour: int | None = None

    @classmethod
    def of(cls, name: str, summary: Summary, colour: int | None = None) -> Column:
        """A run's summary, or the means of several."""
        return cls(name, msgspec.structs.asdict(summary), colour)

    @property
    def label(self) -> str:
        """Its name with the colour it has in the charts."""
        swatch = "" if self.colour is None else f'<i class="swatch c{self.colour % 8}"></i>'
        return swatch + escape(self.name)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _decimal(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


class _Row(NamedTuple):
    key: str
    label: str
    show: Callable[[float], str]
    #: -1: smaller is better, 1: larger is better, 0: neither.
    better: int = 0
    ratio: bool = False


_GROUPS: tuple[tuple[str, tuple[_Row, ...]], ...] = (
    (
        "Completion",
        (
            _Row("num_finished", "jobs finished", _count, 1),
            _Row("num_unfinished", "jobs not finished", _count, -1),
            _Row("avg_jct_s", "average JCT", format_duration, -1, True),
            _Row("vs_bound", "average JCT / lower bound", _decimal, -1),
            _Row("p50_jct_s", "median JCT", format_duration, -1, True),
            _Row("p90_jct_s", "90th percentile", format_duration, -1, True),
            _Row("p99_jct_s", "99th percentile", format_duration, -1, True),
            _Row("slowest10_jct_s", "slowest tenth, mean", format_duration, -1, True),
            _Row("makespan_s", "makespan", format_duration, -1, True),
            _Row("avg_wait_s", "average wait", format_duration, -1, True),
            _Row("p90_wait_s", "wait, 90th percentile", format_duration, -1, True),
        ),
    ),
    (
        "Use of the cluster",
        (
            _Row("gpu_hours", "GPU hours held", _count, -1, True),
            _Row("utilisation", "utilisation", _share),
            _Row("avg_efficiency", "statistical efficiency", _share),
            _Row("num_restarts", "restarts", _count, -1),
            _Row("restart_share", "held time in changes", _share, -1),
        ),
    ),
    (
        "Finish-time fairness",
        (
            # none is the best: each policy's rho is measured against its own time alone
            _Row("rho_mean", "mean rho", _decimal),
            _Row("rho_max", "largest rho", _decimal),
            _Row("rho_unfair_share", "jobs with rho above 1", _share),
        ),
    ),
    (
        "Scheduling overhead",
        (
            _Row("decisions", "decisions", _count),
            _Row("decision_ms", "CPU per decision, ms", _decimal),
            _Row("cpu_s", "CPU of the run", format_duration),
        ),
    ),
)


def summary_table(columns: Sequence[Column], ratios: Mapping[str, Ratio], reference: str) -> str:
    """All numbers of all runs; the best of each in bold, ratios to the reference beside it."""
    several = len(columns) > 1
    base = next((column for column in columns if column.name == reference), columns[0])
    inner = (
        _runs_down(columns, ratios, base) if len(columns) > ACROSS else _runs_across(columns, ratios, base)
    )
    about = ""
    if several:
        about = f"The best values are bold; × is relative to {escape(base.name)}."
    return f'<h2>Summary</h2><p class="about">{about}</p><div class="scroll">{inner}</div>'


def _runs_across(columns: Sequence[Column], ratios: Mapping[str, Ratio], base: Column) -> str:
    several = len(columns) > 1
    # every cell keeps room for a ratio, so that numbers stand under each other
    gap = "<small></small>" if several else ""
    head = "".join(f'<th scope="col">{column.label}{gap}</th>' for column in columns)
    body = []
    for title, rows in _GROUPS:
        lines = []
        for row in _known(rows, columns):
            best = _best(row, columns)
            cells = "".join(_cell(row, column, base, best, several) for column in columns)
            lines.append(f'<tr><th scope="row">{row.label}</th>{cells}</tr>')
            if row.key == "avg_jct_s" and several and ratios:
                cells = "".join(f"<td>{_interval(column, ratios, base)}</td>" for column in columns)
                lines.append(f'<tr><th scope="row">&emsp;same jobs, 95% interval</th>{cells}</tr>')
        if lines:
            span = len(columns) + 1
            body.append(f'<tr class="group"><th colspan="{span}" scope="rowgroup">{title}</th></tr>')
            body += lines
    return (
        f'<table class="summary{"" if several else " one"}">'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _runs_down(columns: Sequence[Column], ratios: Mapping[str, Ratio], base: Column) -> str:
    tables = []
    for title, rows in _GROUPS:
        known = _known(rows, columns)
        if not known:
            continue
        best = {row.key: _best(row, columns) for row in known}
        versus = title == "Completion" and bool(ratios)
        head = "".join(f'<th scope="col">{row.label}</th>' for row in known)
        head += '<th scope="col">average JCT, same jobs, 95% interval</th>' if versus else ""
        body = ""
        for column in columns:
            if all(column.numbers.get(row.key) is None for row in known):
                continue
            cells = "".join(_cell(row, column, base, best[row.key], False) for row in known)
            cells += f"<td>{_interval(column, ratios, base)}</td>" if versus else ""
            body += f'<tr><th scope="row">{column.label}</th>{cells}</tr>'
        tables.append(
            f'<table class="summary down"><caption>{title}</caption>'
            f"<thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    return "".join(tables)


def _known(rows: Sequence[_Row], columns: Sequence[Column]) -> list[_Row]:
    return [row for row in rows if any(column.numbers.get(row.key) is not None for column in columns)]


def _best(row: _Row, columns: Sequence[Column]) -> Number:
    """The best value; None where no direction is better, or where all are alike."""
    known = [value for column in columns if (value := column.numbers.get(row.key)) is not None]
    if not row.better or min(known) == max(known):
        return None
    return max(known) if row.better > 0 else min(known)


def _cell(row: _Row, column: Column, base: Column, best: Number, with_ratio: bool) -> str:
    value, reference = column.numbers.get(row.key), base.numbers.get(row.key)
    text = "–" if value is None else row.show(value)
    if best is not None and value == best:
        text = f"<b>{text}</b>"
    if not with_ratio:
        return f"<td>{text}</td>"
    ratio = f"{value / reference:.2f}×" if column is not base and row.ratio and value and reference else ""
    return f"<td>{text}<small>{ratio}</small></td>"


def _interval(column: Column, ratios: Mapping[str, Ratio], base: Column) -> str:
    ratio = ratios.get(column.name)
    if ratio is None or column is base:
        return ""
    return f"{ratio.ratio:.2f}× [{ratio.low:.2f}, {ratio.high:.2f}]"

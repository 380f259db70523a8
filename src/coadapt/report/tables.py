"""The written parts of a report: the table of all runs, and the words it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from coadapt.report.payload import Run
from coadapt.report.summary import Ratio
from coadapt.units import format_duration

Number = float | int | None


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
            _Row("rho_mean", "mean rho", _decimal, -1),
            _Row("rho_max", "largest rho", _decimal, -1),
            _Row("rho_unfair_share", "jobs with rho above 1", _share, -1),
        ),
    ),
    (
        "Cost of deciding",
        (
            _Row("decisions", "decisions", _count),
            _Row("decision_ms", "CPU per decision, ms", _decimal),
            _Row("cpu_s", "CPU of the run", format_duration),
        ),
    ),
)


def summary_table(runs: Sequence[Run], ratios: Mapping[str, Ratio]) -> str:
    """Numbers down, runs across; the best of a row in bold, ratios to the first run beside it."""
    several = len(runs) > 1
    gap = "<small></small>" if several else ""
    head = "".join(
        f'<th scope="col"><i class="swatch c{number % 8}"></i>{escape(run.name)}{gap}</th>'
        for number, run in enumerate(runs)
    )
    body = []
    for title, rows in _GROUPS:
        lines = [_row(row, runs) for row in rows if any(_value(run, row) is not None for run in runs)]
        if title == "Completion" and several and ratios:
            lines.insert(3, _intervals(runs, ratios))
        if lines:
            body.append(f'<tr class="group"><th colspan="{len(runs) + 1}" scope="rowgroup">{title}</th></tr>')
            body += lines
    about = f"The best number of a row is bold; × is relative to {escape(runs[0].name)}." if several else ""
    return (
        f'<h2>Summary</h2><p class="about">{about}</p><div class="scroll"><table class="summary{"" if several else " one"}">'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _value(run: Run, row: _Row) -> Number:
    value: Number = getattr(run.summary, row.key)
    return value


def _row(row: _Row, runs: Sequence[Run]) -> str:
    values = [_value(run, row) for run in runs]
    known = [value for value in values if value is not None]
    best = max(known) if row.better > 0 else min(known) if row.better < 0 else None
    # where all are alike none is the best
    if len(runs) < 2 or min(known) == max(known):
        best = None
    # every cell keeps room for a ratio, so that numbers stand under each other
    ratios = [
        f"{v / values[0]:.2f}×" if at and row.ratio and v and values[0] else "" for at, v in enumerate(values)
    ]
    cells = "".join(
        _cell(row, value, ratio, bold=best is not None and value == best, wide=len(runs) > 1)
        for value, ratio in zip(values, ratios, strict=True)
    )
    return f'<tr><th scope="row">{row.label}</th>{cells}</tr>'


def _cell(row: _Row, value: Number, ratio: str, *, bold: bool, wide: bool) -> str:
    text = "–" if value is None else row.show(value)
    if bold:
        text = f"<b>{text}</b>"
    return f"<td>{text}{f'<small>{ratio}</small>' if wide else ''}</td>"


def _intervals(runs: Sequence[Run], ratios: Mapping[str, Ratio]) -> str:
    cells = []
    for number, run in enumerate(runs):
        ratio = ratios.get(run.name)
        known = number and ratio is not None
        cells.append(
            f"<td>{ratio.ratio:.2f}× [{ratio.low:.2f}, {ratio.high:.2f}]</td>"
            if known and ratio
            else "<td></td>"
        )
    return f'<tr><th scope="row">&emsp;same jobs, 95% interval</th>{"".join(cells)}</tr>'


_WORDS: tuple[tuple[str, str], ...] = (
    ("JCT", "Job completion time: from submission to finish, of jobs that succeeded."),
    ("Makespan", "From the first submission to the last finish."),
    ("Wait", "Time between submission and finish in which a job held no GPUs, before its first start or paused."),
    ("GPU", "Any accelerator slot; a CPU core on a machine without GPUs."),
    ("Held, utilisation", "A job holds GPUs from the moment it is started there until its last process is gone. Utilisation is GPU time held over GPU time available, within the makespan."),
    ("Change, restart", "A start or a resize. Restarts are the changes after a job's first start; while it starts, resizes or stops, its GPUs are held and nothing is learned."),
    ("Batch size M, reference M0", "Examples per step over all replicas; M0 is the batch size the job was tuned for."),
    ("Gradient noise scale phi", "How noisy a job's gradient is, in examples. The noisier, the larger the batch that still helps."),
    ("Statistical efficiency", "(phi + M0) / (phi + M): how much an example at batch size M teaches, compared with one at M0. Averages are weighted by GPU time."),
    ("Goodput", "Throughput times statistical efficiency: useful examples per second."),
    ("Finish-time fairness rho", "JCT over the time the job would have taken alone on ceil(GPUs / n) GPUs, n the average number of active jobs during its life. At or below 1 is fair."),
    ("95% interval", "From a paired bootstrap: jobs drawn with replacement 2,000 times, the same ones for both runs."),
)  # fmt: skip


def glossary() -> str:
    """The words of the report, as DESIGN defines them."""
    return (
        "<dl>" + "".join(f"<div><dt>{escape(w)}</dt><dd>{escape(d)}</dd></div>" for w, d in _WORDS) + "</dl>"
    )

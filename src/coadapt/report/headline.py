"""The result of a report in one or two sentences, before any table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from coadapt.report.payload import Run
from coadapt.report.summary import Ratio
from coadapt.report.tables import Column
from coadapt.units import format_duration


def kicker(runs: Sequence[Run]) -> str:
    """How many jobs, GPUs and runs."""
    sizes = [f"{gpus:,}" for gpus in dict.fromkeys(run.gpus for run in runs)]
    gpus = f"{', '.join(sizes[:-1])} and {sizes[-1]}" if len(sizes) > 1 else sizes[0]
    jobs = max(run.summary.num_jobs for run in runs)
    several = f" · {len(runs)} runs" if len(runs) > 1 else ""
    return f"Coadapt · {jobs:,.0f} job{'' if jobs == 1 else 's'} · {gpus} GPUs{several}"


def lede(runs: Sequence[Run], columns: Sequence[Column], ratios: Mapping[str, Ratio]) -> str:
    """Under which run jobs took least, on each cluster, and how sure that is."""
    means = {column.name: column.numbers.get("avg_jct_s") for column in columns}
    best: dict[str, tuple[float, str]] = {}
    for run in runs:
        mean = means.get(run.name)
        if mean is not None and (run.cluster not in best or mean < best[run.cluster][0]):
            best[run.cluster] = (mean, run.name)
    if not best:
        return "No job has finished."
    if len(best) > 1:
        each = [f"<strong>{escape(name)}</strong> ({format_duration(mean)})" for mean, name in best.values()]
        text = f"{', '.join(each[:-1])} and {each[-1]}"
        return f"On each cluster, jobs finished soonest under {text}: averages from submission to finish."
    ((best_s, winner),) = best.values()
    name = f"<strong>{escape(winner)}</strong>"
    if len(runs) == 1:
        return f"Under {name} a job took {format_duration(best_s)} on average, from submission to finish."
    text = f"{name} finished jobs soonest: {format_duration(best_s)} on average, from submission to finish."
    ratio, reference = ratios.get(winner), runs[0].name
    if ratio is None or winner == reference:
        return text
    return (
        f"{text} That is {ratio.ratio:.2f} times the average of {escape(reference)} "
        f"(95% interval {ratio.low:.2f} to {ratio.high:.2f}, over the {ratio.jobs:,} jobs that both finished)."
    )

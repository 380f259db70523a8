"""A report as one HTML file that opens offline: no network, no library, a few hundred kilobytes.

The module holds the data of the page, its headline, its glossary (the words as DESIGN defines them) and its charts. A
page with 82,247 jobs must still open, so jobs are sampled: evenly by order of submission, and the same jobs in every
run, so that runs can be compared job by job. Distributions and series are over all jobs.

The table and the words are written here; the figures are drawn by ``assets/report.js`` from JSON inside the page. Names
of jobs and runs come from users: in HTML they are escaped, in the JSON every ``<`` is written as an escape so that
nothing can close the element, and the page's content security policy lets exactly one script run, known by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec
import numpy as np

from coadapt.errors import InputError
from coadapt.model.snapshot import shown_state
from coadapt.report.cluster_history import History
from coadapt.report.fairness import finish_time_fairness
from coadapt.report.job_history import JobHistory
from coadapt.report.series import Binned
from coadapt.report.summary import Column, Ratio, Summary, compare, completion_times, summary_table
from coadapt.units import format_duration

#: Jobs listed per run, points of a distribution, and reports kept of one job.
SAMPLE, QUANTILES, REPORTS = 400, 300, 48
_MOST_STAYS = 200


@dataclass(frozen=True, slots=True)
class Run:
    """One run in a report. ``rho`` from ``finish_time_fairness``; by default that of rigid jobs."""

    name: str
    history: History
    summary: Summary
    rho: Mapping[str, float] | None = None
    #: The cluster in shorthand, where runs on several are compared.
    cluster: str = ""

    @property
    def gpus(self) -> int:
        """The most GPUs that the cluster had."""
        return max((gpus for _, gpus in self.history.gpu_steps), default=0)


def payload(runs: Sequence[Run], *, sample: int = SAMPLE) -> dict[str, Any]:
    """Returns the data that the page's script draws."""
    # the same evenly spaced jobs in all runs
    names = list(dict.fromkeys(name for run in runs for name in run.history.jobs))
    step = max(1.0, len(names) / sample)
    shown = {names[int(i * step)] for i in range(min(sample, len(names)))}
    return {
        "runs": [_run(run, shown) for run in runs],
        "jobs": len(names),
        "shown": len(shown),
        "detail": all(run.history.detail for run in runs),
    }


def _run(run: Run, shown: set[str]) -> dict[str, Any]:
    history = run.history.settle()
    rho = finish_time_fairness(history) if run.rho is None else run.rho
    jct = [job.jct_s for job in history.jobs.values() if job.jct_s is not None]
    origin = history.began_at or 0.0
    return {
        "name": run.name,
        "gpus": run.gpus,
        "summary": msgspec.structs.asdict(run.summary),
        "end": _short(history.now - origin),
        "jct": _quantiles(jct),
        "rho": _quantiles(list(rho.values())),
        "series": {
            "available": _series(history.available.binned(), 1),
            "held": _series(history.held.binned(), 1),
            "changing": _series(history.changing.binned(), 1),
            "queued": _series(history.queued.binned(), 1),
            "active": _series(history.active.binned(), 1),
            "efficiency": _series(history.useful.binned(history.rated), 4),
        },
        "jobs": [_job(job, rho.get(name), origin) for name, job in history.jobs.items() if name in shown],
    }


def _quantiles(values: list[float]) -> list[list[float]]:
    """[value, share of jobs at or below it], at most ``QUANTILES`` of them."""
    if not values:
        return []
    ordered = np.sort(np.array(values))
    count = len(ordered)
    ranks = np.unique(np.linspace(0, count - 1, min(count, QUANTILES)).round().astype(int))
    return [[_short(float(ordered[rank])), round((int(rank) + 1) / count, 4)] for rank in ranks]


def _series(binned: Binned, digits: int) -> dict[str, Any]:
    values = [None if value is None else _trim(round(value, digits)) for value in binned.values]
    return {"width": binned.width_s, "values": values}


def _job(job: JobHistory, rho: float | None, origin: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": job.id,
        "name": job.spec.name,
        "user": job.spec.user,
        "at": _short(job.submitted_at - origin),
        "end": None if job.ended_at is None else _short(job.ended_at - origin),
        "state": job.outcome or shown_state(job.phase).lower(),
        "jct": _short(job.jct_s),
        "wait": _short(job.waited_s),
        "asked": job.spec.requested_gpus,
        "gpus": _short(job.mean_gpus),
        "hours": _short(job.held_gpu_s / 3600),
        "restarts": job.restarts,
        "eff": _short(job.mean_efficiency),
        "rho": _short(rho),
    }
    if job.stays:
        row["stays"] = _stays(job, origin)
    if job.progress:
        row["progress"] = _progress(job, origin)
    if job.reasons:
        row["why"] = job.reasons[-1][1].text
    return row


def _stays(job: JobHistory, origin: float) -> list[list[float | None]]:
    """[start, end, GPUs, 1 if training]; of a job with very many changes only the longest stays."""
    stays = job.stays
    if len(stays) > _MOST_STAYS:
        longest = sorted(stays, key=lambda stay: stay.start - stay.end)[:_MOST_STAYS]
        stays = sorted(longest)
    return [[_short(s.start - origin), _short(s.end - origin), s.gpus, int(s.training)] for s in stays]


def _progress(job: JobHistory, origin: float) -> list[list[float | None]]:
    """[time, batch size, efficiency], thinned evenly; first and last are always there."""
    count = len(job.progress)
    ranks = (
        sorted({round(i * (count - 1) / (REPORTS - 1)) for i in range(REPORTS)})
        if count > REPORTS
        else range(count)
    )
    reports = [job.progress[rank] for rank in ranks]
    return [
        [_short(r.at - origin), r.batch, None if r.efficiency is None else round(r.efficiency, 3)]
        for r in reports
    ]


def _short(value: float | None) -> Any:
    """Four digits or whole numbers: what a chart can show, and a fifth of the bytes."""
    if value is None:
        return None
    return _trim(round(value, 1) if abs(value) >= 1000 else float(f"{value:.4g}"))


def _trim(value: float) -> float:
    """A whole number without its ".0"."""
    return int(value) if value == int(value) else value


def kicker(runs: Sequence[Run]) -> str:
    """Returns the line above the title: the number of jobs, GPUs and runs."""
    sizes = [f"{gpus:,}" for gpus in dict.fromkeys(run.gpus for run in runs)]
    gpus = f"{', '.join(sizes[:-1])} and {sizes[-1]}" if len(sizes) > 1 else sizes[0]
    jobs = max(run.summary.num_jobs for run in runs)
    several = f" · {len(runs)} runs" if len(runs) > 1 else ""
    return f"Coadapt · {jobs:,.0f} job{'' if jobs == 1 else 's'} · {gpus} GPUs{several}"


def lede(runs: Sequence[Run], columns: Sequence[Column], ratios: Mapping[str, Ratio]) -> str:
    """Returns the headline: under which run jobs took least time, on each cluster, and how certain that is."""
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
        return f"Shortest average time from submission to finish on each cluster: {text}."
    ((best_s, winner),) = best.values()
    name = f"<strong>{escape(winner)}</strong>"
    if len(runs) == 1:
        return f"With {name} a job took {format_duration(best_s)} on average from submission to finish."
    text = f"{name} has the shortest average time from submission to finish: {format_duration(best_s)}."
    ratio, reference = ratios.get(winner), runs[0].name
    if ratio is None or winner == reference:
        return text
    return f"{text} {_verdict(ratio, escape(reference))}"


def _verdict(ratio: Ratio, reference: str) -> str:
    """Says what an interval allows to say: a difference, or none."""
    jobs = f"over the {ratio.jobs:,} jobs that both finished"
    if ratio.low <= 1 <= ratio.high:
        return (
            f"The difference from {reference} is not significant: {ratio.ratio:.2f} times its average "
            f"(95% interval {ratio.low:.2f} to {ratio.high:.2f}, {jobs})."
        )
    less, (low, high) = 1 - ratio.ratio, sorted((abs(1 - ratio.low), abs(1 - ratio.high)))
    return (
        f"That is {abs(less):.0%} {'less' if less > 0 else 'more'} than with {reference} "
        f"(95% interval {low:.0%} to {high:.0%}, {jobs})."
    )


_WORDS: tuple[tuple[str, str], ...] = (
    ("JCT", "Job completion time: from submission to finish, of jobs that succeeded."),
    ("Makespan", "From the first submission to the last finish."),
    ("Wait", "Time between submission and finish in which a job held no GPUs: before its first start, preempted or paused."),
    ("GPU", "Any accelerator slot; a CPU core on a machine without GPUs."),
    ("Held, utilisation", "A job holds GPUs from its start until its last process has ended. Utilisation is GPU time held over GPU time available, within the makespan."),
    ("Change, restart", "A start or a resize. Restarts are the changes after a job's first start; while it starts, resizes or stops, it holds GPUs without training."),
    ("Batch size M, reference M0", "Examples per step over all replicas; M0 is the batch size the job was tuned for."),
    ("Gradient noise scale phi", "How noisy a job's gradient is, in examples. The larger it is, the larger the batch sizes that still help."),
    ("Statistical efficiency", "(phi + M0) / (phi + M): the progress from one example at batch size M, relative to one at M0. Averages are weighted by GPU time."),
    ("Goodput", "Throughput times statistical efficiency: useful examples per second."),
    ("Finish-time fairness rho", "JCT over the time the job would have taken alone on ceil(GPUs / n) GPUs, n the average number of active jobs during its life. At or below 1 is fair; the cost of starts and scheduling rounds alone, which is higher on a shared cluster, pushes rho slightly above 1."),
    ("95% interval", "From a paired bootstrap: 2,000 samples of jobs drawn with replacement, the same jobs for both runs."),
)  # fmt: skip


def glossary() -> str:
    """Returns the definitions of the words that the report uses, as an HTML list."""
    return (
        "<dl>" + "".join(f"<div><dt>{escape(w)}</dt><dd>{escape(d)}</dd></div>" for w, d in _WORDS) + "</dl>"
    )


def render(
    runs: Sequence[Run],
    *,
    title: str,
    notes: Sequence[str] = (),
    sample: int = SAMPLE,
    columns: Sequence[Column] | None = None,
    ratios: Mapping[str, Ratio] | None = None,
    recorded: str = "",
    bound: str = "",
) -> str:
    """Returns the page.

    Args:
        runs: Runs to show; ratios are relative to the first.
        title: Title of the page.
        notes: Notes for the reader, a list under the headline.
        sample: Most jobs per run that are shown one by one.
        columns: Columns of the table, if they are not these runs (means over seeds, a run that was recorded).
        ratios: Ratios of the table, if they are not those of these runs.
        recorded: Result of a replay of the recorded run, a paragraph under the headline.
        bound: How much better a policy could be at all, a paragraph under the headline.
    """
    names = [run.name for run in runs]
    if not names or len(set(names)) < len(names):
        raise InputError(f"a report needs runs with different names, not {names}")
    data = payload(runs, sample=sample)
    own = [Column.of(run.name, run.summary, number) for number, run in enumerate(runs)]
    columns = own if columns is None else columns
    ratios = _ratios(runs) if ratios is None else ratios
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _PAGE.format(
        title=escape(title),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=_asset("report.css"),
        script=script,
        kicker=escape(kicker(runs)),
        lede=lede(runs, columns, ratios),
        recorded="".join(
            f'<p class="about recorded">{escape(text)}</p>' for text in (recorded, bound) if text
        ),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes),
        table=summary_table(columns, ratios, names[0]),
        sampled=_sampled(data["shown"], data["jobs"]),
        glossary=glossary(),
        data=embed(data),
    )


def embed(data: object) -> str:
    """JSON that is safe inside a script element, whatever strings it holds."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return (files("coadapt.report") / "assets" / name).read_text(encoding="utf-8")


def _ratios(runs: Sequence[Run]) -> dict[str, Ratio]:
    if len(runs) < 2:
        return {}
    return compare({run.name: [completion_times(run.history)] for run in runs}, runs[0].name)


def _sampled(shown: int, jobs: int) -> str:
    if shown == jobs:
        return f"All {jobs:,} jobs are shown."
    return (
        f"{shown:,} of {jobs:,} jobs are shown, evenly spaced by submission. "
        "The summary, distributions and charts over time include all jobs."
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<header>
<p class="kicker">{kicker}</p>
<h1>{title}</h1>
<p class="lede">{lede}</p>
{recorded}
<ul class="notes">{notes}</ul>
</header>
<nav aria-label="Sections"><a href="#summary">Summary</a><a href="#distributions">Distributions</a><a href="#cluster">The cluster over time</a><a href="#jobs">Jobs over time</a><a href="#job">One job</a><a href="#table">All jobs</a><a href="#words">Glossary</a></nav>
<noscript><p class="about">The charts need JavaScript, which is disabled in your browser.</p></noscript>
<section id="summary">{table}</section>
<section id="distributions">
<h2>Distributions</h2>
<p class="about">Share of jobs at or below a value. Curves further to the left are better.</p>
<div class="two">
<figure><figcaption><b>Job completion time.</b> Submission to finish, logarithmic.</figcaption><div class="legend" id="l-jct"></div><div class="plot" id="jct"></div></figure>
<figure><figcaption><b>Finish-time fairness.</b> Above 1, the job was slower than on its own share of the cluster.</figcaption><div class="legend" id="l-rho"></div><div class="plot" id="rho"></div></figure>
</div>
</section>
<section id="cluster">
<h2>The cluster over time</h2>
<p class="about">Averages over equal intervals.</p>
<figure><figcaption><b>GPUs held.</b> Coloured: held by jobs; at the bottom, by jobs that start, resize or stop. Dotted: available.</figcaption><div class="plot" id="gpus"></div></figure>
<div class="two">
<figure><figcaption><b>Statistical efficiency.</b> Over all training GPUs for which it is known.</figcaption><div class="legend" id="l-eff"></div><div class="plot" id="eff"></div></figure>
<figure><figcaption><b>Jobs waiting.</b> Ready to run, without GPUs.</figcaption><div class="legend" id="l-queue"></div><div class="plot" id="queue"></div></figure>
</div>
</section>
<section id="jobs">
<h2>Jobs over time</h2>
<p class="about">One row per job, in order of submission. Select a job to see its details. {sampled}</p>
<div class="tools"><div class="tabs" id="t-gantt"></div>
<div class="key"><span>1 GPU <i class="ramp"></i> <span id="most"></span></span><span><i class="swatch box change"></i>changing</span><span><i class="swatch idle"></i>waiting</span></div></div>
<div class="plot" id="gantt"></div>
</section>
<section id="job">
<h2>One job</h2>
<div class="tools"><label>Job <input id="which" list="names" autocomplete="off" spellcheck="false"></label><datalist id="names"></datalist></div>
<p class="about" id="life-about"></p>
<div class="legend" id="l-life"></div>
<div class="plot" id="life-gpus"></div><div class="plot" id="life-batch"></div><div class="plot" id="life-eff"></div>
</section>
<section id="table">
<h2>All jobs</h2>
<p class="about">{sampled}</p>
<div class="tools"><div class="tabs" id="t-jobs"></div><label>Filter <input id="filter" type="search" placeholder="job, name, user, state"></label><label id="count"></label></div>
<div class="scroll"><table class="jobs"><thead id="head"></thead><tbody id="body"></tbody></table></div>
<button class="more" id="more" type="button">Show more</button>
</section>
<section id="words">
<h2>Glossary</h2>
{glossary}
</section>
<footer>Generated by coadapt from an event log. This file works offline.</footer>
</main>
<div id="tip" role="status" hidden></div>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""

"""A report as one HTML file that opens offline: no network, no library, a few hundred kilobytes.

The table and the words are written here; the figures are drawn by ``assets/report.js`` from JSON inside
the page. Names of jobs and runs come from users: in HTML they are escaped, in the JSON every ``<`` is
written as an escape so that nothing can close the element, and the page's content security policy lets
exactly one script run, known by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files

import msgspec

from coadapt.errors import InputError
from coadapt.report.headline import kicker, lede
from coadapt.report.payload import SAMPLE, Run, payload
from coadapt.report.summary import Ratio, compare, completion_times
from coadapt.report.tables import Column, summary_table
from coadapt.report.words import glossary


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
    """The page. Ratios are to the first run; at most ``sample`` jobs per run are shown one by one.

    ``columns`` and ``ratios``: what the table shows if it is not these runs alone (means over seeds, a run that
    was recorded). ``recorded``: what a replay of that run says, a paragraph under the headline; ``bound``: the same
    about how much better a policy could be at all.
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
        f"{shown:,} of {jobs:,} jobs are shown, evenly spaced by submission; "
        "the summary, the distributions and the charts over time count all of them."
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
<nav aria-label="Sections"><a href="#summary">Summary</a><a href="#distributions">Distributions</a><a href="#cluster">The cluster over time</a><a href="#jobs">Jobs over time</a><a href="#job">One job</a><a href="#table">All jobs</a><a href="#words">Words</a></nav>
<noscript><p class="about">The figures are drawn by a script inside this page, which your browser does not run.</p></noscript>
<section id="summary">{table}</section>
<section id="distributions">
<h2>Distributions</h2>
<p class="about">The share of jobs at or below a value: the further left a curve, the better.</p>
<div class="two">
<figure><figcaption><b>Job completion time.</b> Submission to finish, logarithmic.</figcaption><div class="legend" id="l-jct"></div><div class="plot" id="jct"></div></figure>
<figure><figcaption><b>Finish-time fairness.</b> Right of 1, sharing delayed the job.</figcaption><div class="legend" id="l-rho"></div><div class="plot" id="rho"></div></figure>
</div>
</section>
<section id="cluster">
<h2>The cluster over time</h2>
<p class="about">Means over equal stretches of time.</p>
<figure><figcaption><b>GPUs held.</b> Coloured: held by jobs; at the foot, those of them that start, resize or stop. Dotted: available.</figcaption><div class="plot" id="gpus"></div></figure>
<div class="two">
<figure><figcaption><b>Statistical efficiency.</b> Of all training GPUs where it is known.</figcaption><div class="legend" id="l-eff"></div><div class="plot" id="eff"></div></figure>
<figure><figcaption><b>Jobs waiting.</b> Submitted, able to run, without GPUs.</figcaption><div class="legend" id="l-queue"></div><div class="plot" id="queue"></div></figure>
</div>
</section>
<section id="jobs">
<h2>Jobs over time</h2>
<p class="about">A row is a job, in order of submission; select one to see its life. {sampled}</p>
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
<h2>Words</h2>
{glossary}
</section>
<footer>Made by coadapt from an event log. This file needs no network.</footer>
</main>
<div id="tip" role="status" hidden></div>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""

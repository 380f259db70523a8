from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from coadapt.errors import InputError
from coadapt.report import Column, History, Run, render, summarise
from coadapt.report.html import embed, payload
from tests.unit.report.logs import Log, a_job_without_length, an_adaptive_job, on, two_jobs

EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>&amp;{0}"


def a_run(name: str, log: Log, *, detail: bool = True) -> Run:
    history = History.of(log.records, detail=detail)
    return Run(name, history, summarise(history))


def an_evil_log() -> Log:
    log = Log()
    log.submit(0, EVIL, a_job_without_length(EVIL, user=EVIL))
    log.decide(0, EVIL, EVIL)
    log.start(1, EVIL, on(n0=1))
    log.finish(9, EVIL)
    return log


class Elements(HTMLParser):
    """Every element, and the text inside scripts as a browser would cut it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def test_render_runs_no_script_but_its_own_whatever_names_say() -> None:
    page = Elements(render([a_run(EVIL, an_evil_log())], title=EVIL, notes=[EVIL]))
    plain = Elements(render([a_run("run", two_jobs())], title="title", notes=["note"]))
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in page.tags]
    assert page.scripts[1] == plain.scripts[1]
    assert json.loads(page.scripts[0])["runs"][0]["jobs"][0]["id"] == EVIL


def test_render_allows_exactly_its_script_by_hash() -> None:
    page = render([a_run("run", two_jobs())], title="title")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='$", policy[1])


def test_render_asks_the_network_for_nothing() -> None:
    page = render([a_run("run", two_jobs())], title="title")
    assert not [
        attrs for _, attrs in Elements(page).tags if "src" in attrs or (attrs.get("href") or "#")[0] != "#"
    ]
    # the only address is the name of the SVG namespace
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert "url(" not in page


def test_render_compares_with_the_first_run() -> None:
    quick = Log()
    quick.submit(0, "a")
    quick.start(0, "a", on(n0=4))
    quick.submit(30, "b")
    quick.start(30, "b", on(n1=4))
    quick.finish(40, "a")
    quick.finish(65, "b")
    page = render([a_run("fifo", two_jobs()), a_run("pollux", quick)], title="Two policies")
    # 40 and 35 against 100 and 50: on average one half
    assert "<strong>pollux</strong> has the shortest average time from submission to finish: 38s." in page
    assert (
        "That is 50% less than with fifo (95% interval 30% to 60%, over the 2 jobs that both finished)."
        in page
    )
    assert "<b>38s</b><small>0.50×</small>" in page


def test_render_names_no_winner_where_the_interval_contains_one() -> None:
    other = Log()
    other.submit(0, "a")
    other.start(0, "a", on(n0=4))
    other.submit(30, "b")
    other.start(30, "b", on(n1=4))
    other.finish(70, "a")
    other.finish(90, "b")
    page = render([a_run("fifo", two_jobs()), a_run("pollux", other)], title="Two policies")
    # 70 and 60 against 100 and 50
    assert (
        "The difference from fifo is not significant: 0.87 times its average (95% interval 0.70 to 1.20"
        in page
    )


def test_render_names_the_best_of_each_cluster() -> None:
    small, large = a_run("fifo on 2x4", two_jobs()), a_run("fifo on 3x4", two_jobs(nodes=3))
    runs = [replace(small, cluster="2x4"), replace(large, cluster="3x4")]
    page = render(runs, title="Two clusters")
    assert "<strong>fifo on 2x4</strong> (1m 15s) and <strong>fifo on 3x4</strong> (1m 15s)" in page
    assert "8 and 12 GPUs" in page


def test_render_puts_many_runs_below_each_other() -> None:
    runs = [a_run(f"run {number}", two_jobs()) for number in range(5)]
    assert "<caption>Completion</caption>" in render(runs, title="Five")
    assert "<caption>" not in render(runs[:4], title="Four")


def test_render_shows_the_columns_and_the_replay_it_is_given() -> None:
    run = a_run("fifo", two_jobs())
    columns = [Column("recorded", {"avg_jct_s": 150.0}), Column.of("fifo", run.summary, 0)]
    page = render([run], title="t", columns=columns, ratios={}, recorded="26 < 114 late")
    assert "2m 30s</td>" in page.replace("<small>2.00×</small>", "")
    assert "26 &lt; 114 late" in page


def test_report_colours_changes_as_no_policy() -> None:
    page = render([a_run("run", two_jobs())], title="title")
    for theme in re.findall(r":root {(.*?)}", page, re.DOTALL):
        colours = dict(re.findall(r"--(\w+): (#\w+);", theme))
        assert colours["change"] not in [colours[f"c{number}"] for number in range(8)]


def test_render_of_an_unfinished_run_says_so() -> None:
    log = Log()
    log.submit(0, "a")
    assert "No job has finished." in render([a_run("run", log)], title="Nothing yet")


def test_render_refuses_runs_it_cannot_tell_apart() -> None:
    with pytest.raises(InputError, match="different names"):
        render([a_run("x", two_jobs()), a_run("x", two_jobs())], title="t")
    with pytest.raises(InputError):
        render([], title="t")


def test_render_samples_the_same_jobs_of_every_run_and_says_so() -> None:
    log = Log(nodes=1, gpus=100)
    for i in range(90):
        log.submit(i, f"j{i}")
        log.start(i, f"j{i}", on(n0=1))
    runs = [a_run("x", log), a_run("y", log)]
    data = payload(runs, sample=30)
    names = [[job["id"] for job in run["jobs"]] for run in data["runs"]]
    assert names[0] == names[1] == [f"j{i}" for i in range(0, 90, 3)]
    assert "30 of 90 jobs are shown" in render(runs, title="t", sample=30)
    assert "All 90 jobs are shown" in render(runs, title="t")


def test_payload_thins_reports_but_keeps_the_first_and_the_last() -> None:
    log = Log()
    log.submit(0, "a", an_adaptive_job())
    log.start(0, "a", on(n0=1))
    for at in range(1, 501):
        log.measure(at, "a", batch=128 + at, phi_over_m0=1.0)
    reports = payload([a_run("x", log)])["runs"][0]["jobs"][0]["progress"]
    assert len(reports) == 48
    assert (reports[0][0], reports[-1][0]) == (1, 500)


def test_payload_without_detail_still_has_numbers_and_series() -> None:
    run = payload([a_run("x", two_jobs(), detail=False)])
    assert run["detail"] is False
    assert [job["jct"] for job in run["runs"][0]["jobs"]] == [100, 50]
    assert run["runs"][0]["jct"] == [[50, 0.5], [100, 1]]
    assert max(run["runs"][0]["series"]["held"]["values"]) == 6


def test_embed_gives_back_what_it_was_given_without_markup() -> None:
    text = embed({"x": EVIL})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"x": EVIL}

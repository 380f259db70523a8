"""The pages: what they say is what the API says, and nothing in them is anybody else's markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from coadapt.model import JobFinished, JobSubmitted
from coadapt.server.dashboard import pages, rendering
from coadapt.server.dashboard.pages import SIDE, Judged, scatter
from coadapt.wire.api import JobLine
from tests.builders import a_job
from tests.unit.server.served import Client, Served, a_measurement, a_submission

PAGES = ["/", "/jobs", "/jobs/a-1", "/jobs/b-2", "/predictions"]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202egnp.exe"


class Elements(HTMLParser):
    """Every element and its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_harmless(text: str) -> None:
    """Only our own scripts, nothing inline, no letters that turn others around."""
    for tag, attributes in Elements(text).found:
        assert tag != "script" or (attributes.get("src") or "").startswith("/assets/")
        assert tag not in ("img", "iframe", "object", "style", "base")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert not re.search("[\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)


@pytest.mark.parametrize("path", PAGES)
def test_page_runs_no_script_but_ours(client: Client, path: str) -> None:
    answer = client.get("root", path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert_harmless(answer.text)
    for tag, attributes in Elements(answer.text).found:
        for name in ("src", "href"):
            assert not (attributes.get(name) or "").startswith(("http:", "https:", "//")), tag


def test_first_page_is_made_once_while_nothing_happens_and_anew_when_something_does(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = rendering.rendered
    monkeypatch.setattr(pages, "rendered", lambda name, **values: made.append(name) or real(name, **values))
    first = client.get("root", "/").text
    assert client.get("root", "/").text == first
    assert made == ["cluster.html"]
    assert "b-2" not in client.get("ada", "/").text  # another's page is another page
    job = client.post("root", "/v1/jobs", a_submission()).json()["job"]
    assert job in client.get("root", "/").text
    served.append(JobFinished(job="a-1", attempt=1, outcome="succeeded"))
    served.now += 1.0
    assert client.get("root", "/").text.count("succeeded") > first.count("succeeded")
    assert len(made) == 4


def test_what_users_say_is_text(served: Served, client: Client) -> None:
    """A controller would not let these names in; the pages do not count on that."""
    job = a_job(1, name=HOSTILE, user=HOSTILE, team=HOSTILE, command=(HOSTILE,))
    served.append(
        JobSubmitted(job="x-9", spec=job),
        JobFinished(
            job="a-1", attempt=1, outcome="failed", kind="exception", reason=HOSTILE, tail=HOSTILE, rank=0
        ),
    )
    logs = served.home.keeper / "logs" / "a-1.1"
    logs.mkdir(parents=True)
    (logs / "0.out").write_text(f"{HOSTILE}\n</pre><script>alert(2)</script>\n")
    for path in ("/", "/jobs", "/jobs/a-1", "/jobs/x-9"):
        text = client.get("root", path).text
        assert "&lt;script&gt;" in text, path
        assert "\\u202e" in text, path
        assert_harmless(text)


def test_metrics_with_hostile_names_are_text(served: Served, client: Client) -> None:
    from coadapt.model import Measured

    served.append(Measured(job="a-1", attempt=1, measurement=a_measurement(metrics={HOSTILE: 0.5})))
    text = client.get("root", "/jobs/a-1").text
    assert "&lt;script&gt;" in text
    assert_harmless(text)


def test_problem_page_is_text(client: Client) -> None:
    for path in (
        "/jobs/%3Cscript%3E",
        "/jobs/nobody-1",
        "/?%3Cscript%3E=1",
        "/jobs?after=-1",
        "/assets/x.js",
    ):
        answer = client.get("root", path)
        assert 400 <= answer.status_code < 500
        assert_harmless(answer.text)
        assert "<h1>Coadapt</h1>" in answer.text


def test_page_shows_what_the_api_says(client: Client) -> None:
    text, line = client.get("root", "/").text, client.get("root", "/v1/jobs/a-1").json()["line"]
    row = text[text.index('data-job="a-1"') :].partition("</tr>")[0]
    assert f">{line['state'].lower()}<" in row
    assert f">{line['gpus']} <small>" in row
    assert f">{line['batch']}<" in row
    assert f"{100 * line['progress']:.0f}%" in row
    assert line["why"] in row


def test_jobs_that_hold_gpus_come_before_hundreds_that_wait(served: Served, client: Client) -> None:
    served.append(*(JobSubmitted(job=f"w-{n}", spec=a_job(1, name="w", user="bob")) for n in range(3, 303)))
    text = client.get("root", "/").text
    assert text.index('data-job="a-1"') < text.index('data-job="w-302"')
    assert "Showing the newest 50 of 301" in text
    assert 'data-job="w-3"' not in text
    assert 'data-job="w-203"' in client.get("root", "/jobs").text
    older = re.search(r'href="(/jobs\?after=\d+)"', client.get("root", "/jobs").text)
    assert older is not None
    assert 'data-job="w-202"' in client.get("root", older[1]).text


def test_empty_cluster_says_what_to_do(served: Served, client: Client) -> None:
    assert "coadapt submit" not in client.get("ada", "/").text
    served.append(JobFinished(job="a-1", attempt=1, outcome="succeeded"))
    assert "coadapt submit" in client.get("ada", "/").text


def test_dead_controller_is_said_on_every_page(client: Client) -> None:
    for path in PAGES:
        assert "The controller is not running" in client.get("root", path).text


def test_assets_are_kept_by_browsers_until_they_change(client: Client) -> None:
    text = client.get("root", "/jobs/a-1").text
    found = re.findall(r'"(/assets/[^"]+)"', text)
    assert len(found) == 4
    for path in found:
        answer = client.http.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    "path", ["/assets/", "/assets/../routes.py", "/assets/%2e%2e%2froutes.py", "/assets/base.html"]
)
def test_nothing_but_assets_is_served(client: Client, path: str) -> None:
    assert client.http.get(path).status_code in (404, 405)


def test_cells_are_as_many_as_gpus() -> None:
    assert rendering.cells({"a-1": 2}, 4, 2) == ["a-1", "a-1", "", ""]
    assert rendering.cells({"a-1": 2}, 4, 0) == ["a-1", "a-1", "-", "-"]
    assert rendering.cells({}, 2, 2) == ["", ""]


def test_cost_of_a_moment_has_no_exponent() -> None:
    spent = {0.3: "< 0.001 GPU-h", 36.0: "0.01 GPU-h", 0.0: rendering.NONE}
    for gpu_s, words in spent.items():
        line = JobLine(
            job="a-1", name="a", user="", team="", order=0, state="FAILED", submitted_at=0.0, gpu_s=gpu_s
        )
        assert rendering.cost(line, "") == words


def test_jobs_that_follow_each_other_have_different_colours() -> None:
    assert (
        len({rendering.colour(f"job-{number}") for number in range(rendering.COLOURS)}) == rendering.COLOURS
    )


def test_scatter_puts_a_right_prediction_on_the_diagonal() -> None:
    right = Judged(job="a", predicted_s=100.0, low_s=50.0, high_s=None, actual_s=100.0)
    late = Judged(job="b", predicted_s=100.0, low_s=90.0, high_s=110.0, actual_s=200.0)
    plot = scatter([right, late])
    assert plot is not None
    (x, y, low, high, _), (x2, y2, *_) = plot.points
    assert x + y == pytest.approx(SIDE)
    assert high < y < low
    assert (x2 > x, y2 == y) == (True, True)
    assert (right.within, late.within) == (True, False)
    assert scatter([]) is None

"""The dashboard as people have it: Chromium before a live cluster with two jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import DEADLINE_S, until

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here (Debian: chromium)")
PATIENCE_MS = 1000 * DEADLINE_S
NAME = "a-name-as-long-as-names-can-be-which-is-sixty-three-letters-long"[:63]
#: Reports a little work, then waits until a file lets it end.
SCRIPT = """
import json, os, pathlib, sys, time
world = int(os.environ["WORLD_SIZE"])
if os.environ["RANK"] == "0":
    config = {"nodes": 1, "replicas": world, "atomic_batch": 32, "gpu_type": os.environ["COADAPT_GPU_TYPE"]}
    for number in (1, 2, 3):
        measured = {"config": config, "count": 4, "step_s": 0.1, "sync_s": 0.01, "grad_sqr": 1.0, "grad_var": 2.0,
                    "work": 100.0 * number, "metrics": {"loss": 1.0 / number}}
        print("COADAPT", json.dumps({"job": os.environ["COADAPT_JOB"], "attempt": int(os.environ["COADAPT_ATTEMPT"]),
                                     "number": number, "measurements": [measured]}), flush=True)
        print("done", number, flush=True)
        time.sleep(0.2)  # the length of a step
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


class Live:
    """A cluster of its own, asked as the local administrator."""

    def __init__(self, path: Path) -> None:
        self.home, self.path = path / "home", path
        self.said = self.run("serve", "--virtual", "2x4:t4", "--listen", "127.0.0.1:0", "--detach")
        self.url = (self.home / "address").read_text().strip()

    def run(self, *words: str) -> str:
        # a job's start is not waited for longer than the machine may stand still
        done = subprocess.run(
            [sys.executable, "-m", "coadapt.cli.main", words[0], "--home", str(self.home), *words[1:]],
            capture_output=True, text=True, timeout=DEADLINE_S, env=os.environ | {"COADAPT_HOME": str(self.path / "own")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, path: str) -> Any:
        token = (self.home / "token").read_text().strip()
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.load(answer)

    def submit(self, name: str) -> str:
        code = self.path / "code"
        code.mkdir(exist_ok=True)
        (code / "light.py").write_text(SCRIPT)
        said = self.run(
            "submit", "-y", "--json", "--workdir", str(code), "--name", name, "--gpus", "t4:2", "--batch", "64",
            "--epochs", "1", "--data-size", "400", "--", sys.executable, "light.py", str(self.path / f"end-{name}"),
        )  # fmt: skip
        job: str = json.loads(said)["job"]
        return job

    def batch(self, job: str) -> int:
        """What the API says the batch size is, once the job has reported one."""
        until(
            lambda: self.get(f"/v1/jobs/{job}")["line"]["batch"] is not None, f"{job} reported no batch size"
        )
        batch: int = self.get(f"/v1/jobs/{job}")["line"]["batch"]
        return batch

    def end(self, name: str) -> None:
        """Lets the job end."""
        (self.path / f"end-{name}").touch()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    cluster = Live(tmp_path)
    try:
        yield cluster
    finally:
        cluster.run("down")


@pytest.fixture
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield found
        found.close()


def _open(browser: Any, width: int, height: int) -> tuple[Any, list[str]]:
    """A page that is not signed in, and what goes wrong in it."""
    page = browser.new_context(viewport={"width": width, "height": height}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.set_default_navigation_timeout(PATIENCE_MS)
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    return page, wrong


def _state(page: Any, job: str) -> Any:
    return page.locator(f'tr[data-job="{job}"] .state')


def test_dashboard_shows_what_the_api_says_and_updates_by_itself(live: Live, browser: Any) -> None:
    match = re.search(r"http://\S+/sign-in\?once=\S+", live.said)
    assert match is not None
    page, wrong = _open(browser, 1280, 800)
    page.goto(match[0])
    assert page.url == f"{live.url}/"
    page.evaluate("window.sameDocument = true")
    sync_api.expect(page.locator("#active")).to_contain_text("No jobs are running", timeout=PATIENCE_MS)

    first, second = live.submit("first"), live.submit("second")
    for job in (first, second):
        sync_api.expect(_state(page, job)).to_have_text("running", timeout=PATIENCE_MS)
    sync_api.expect(page.locator("#live")).to_have_text("live", timeout=PATIENCE_MS)
    sync_api.expect(page.locator("#glance")).to_contain_text("4 of 8", timeout=PATIENCE_MS)
    nodes = live.get("/v1/nodes")["nodes"]
    assert [len(nodes), sum(node["free"] for node in nodes)] == [2, 4]
    for shown, count in ((".node", 2), (".gpu", 8), (".gpu.free", 4)):
        sync_api.expect(page.locator(shown)).to_have_count(count, timeout=PATIENCE_MS)
    for job in (first, second):
        batch = live.batch(job)
        row = page.locator(f'tr[data-job="{job}"]')
        sync_api.expect(row.locator('[data-label="GPUs"]')).to_have_text("2 t4", timeout=PATIENCE_MS)
        sync_api.expect(row.locator('[data-label="Batch"]')).to_have_text(str(batch), timeout=PATIENCE_MS)

    live.end("first")
    sync_api.expect(page.locator("#ended")).to_contain_text(first, timeout=PATIENCE_MS)
    sync_api.expect(_state(page, first)).to_have_text("succeeded", timeout=PATIENCE_MS)
    sync_api.expect(page.locator(".gpu.free")).to_have_count(6, timeout=PATIENCE_MS)
    assert live.get(f"/v1/jobs/{first}")["line"]["state"] == "SUCCEEDED"
    assert page.evaluate("window.sameDocument") is True, "the page was loaded anew"

    page.locator(f'tr[data-job="{second}"] a').click()
    page.wait_for_url(f"{live.url}/jobs/{second}")
    for title in ("GPUs", "Batch", "Progress", "loss"):
        sync_api.expect(page.locator("#charts figure", has_text=title).first).to_be_visible(
            timeout=PATIENCE_MS
        )
    sync_api.expect(page.locator("#log-out")).to_contain_text("done 3", timeout=PATIENCE_MS)
    live.end("second")
    sync_api.expect(page.locator("#facts .state")).to_have_text("succeeded", timeout=PATIENCE_MS)
    assert wrong == []


def test_dashboard_fits_a_phone_and_does_without_the_stream(live: Live, browser: Any) -> None:
    job = live.submit(NAME)
    page, wrong = _open(browser, 360, 740)
    page.goto(live.url)
    assert page.url == f"{live.url}/sign-in?next=/"
    page.fill("#token", (live.home / "token").read_text().strip())
    page.click("button")
    page.wait_for_url(f"{live.url}/")
    sync_api.expect(_state(page, job)).to_have_text("running", timeout=PATIENCE_MS)
    for path in ("/", "/jobs", f"/jobs/{job}", "/predictions"):
        page.goto(live.url + path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, f"{path} is {wide} wide"
    assert wrong == []

    # a proxy that does not let streams through: the page asks again by itself
    page.route("**/v1/stream", lambda route: route.abort())
    page.goto(live.url)
    sync_api.expect(page.locator("#live")).to_contain_text("every", timeout=PATIENCE_MS)
    live.end(NAME)
    sync_api.expect(_state(page, job)).to_have_text("succeeded", timeout=PATIENCE_MS)

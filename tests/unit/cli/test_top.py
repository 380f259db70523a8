"""``coadapt top`` on terminals of different widths."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from coadapt.cli.jobs.top import picture
from coadapt.cli.main import run
from coadapt.wire import api
from tests.unit.client.fake import fake_controller

NOW = 1_800_000_000.0
CLUSTER = api.ClusterNow(
    now=NOW, seq=1, policy="coadapt", gpus=4, free_gpus=0, states={"RUNNING": 1}, nodes=[], controller_age_s=1.0, version="0"
)  # fmt: skip
LINE = api.JobLine(
    job="long-92", name="long", user="ada", team="", order=1, state="SUCCEEDED", submitted_at=NOW - 60, gpus=4, gpu_type="t4",
    batch=1024, progress=0.42, gpu_s=7200.0, finished_at=NOW - 5.0, why="runs on 4: it can use no more",
)  # fmt: skip


def _printed(columns: int, lines: list[api.JobLine]) -> str:
    out = io.StringIO()
    Console(file=out, width=columns).print(picture(CLUSTER, lines, columns))
    return out.getvalue()


@pytest.mark.parametrize(("columns", "left_out"), [(120, ""), (80, "COST"), (70, "COST, BATCH")])
def test_narrow_terminal_leaves_columns_out_and_says_which(columns: int, left_out: str) -> None:
    text = _printed(columns, [LINE])
    assert ("too narrow" in text) == bool(left_out)
    assert f"(too narrow for {left_out})" in text or not left_out
    assert ("GPU-h" in text) == ("COST" not in left_out)
    # what is shown is whole, and the reason has room
    assert "SUCCEEDED" in text
    assert "runs on 4: it can" in text


def test_cluster_without_jobs_is_shown() -> None:
    assert "WHY" in _printed(60, [])


def test_once_into_a_pipe_cuts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "Waiting. " + "Other jobs gain more from its GPUs. " * 20
    with fake_controller() as controller:
        monkeypatch.setenv("COADAPT_SERVER", controller.url)
        monkeypatch.setenv("COADAPT_API_TOKEN", "t")
        monkeypatch.setenv("COLUMNS", "60")
        controller.answers["GET /v1/cluster"] = CLUSTER
        line = msgspec.structs.replace(LINE, why=reason.strip())
        controller.answers["GET /v1/jobs"] = api.JobPage(jobs=[line, LINE], total=2)
        assert run(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert reason.strip() in out
    assert "2.00 GPU-h" in out
    assert max(map(len, out.splitlines())) < 1000


def test_end_of_a_job_is_never_left_out() -> None:
    # people look at it first; the reason is shortened instead
    text = _printed(56, [LINE])
    assert "GPU-h" not in text
    assert "5.0s ago" in text

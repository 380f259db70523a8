"""``coadapt plan`` says which short run would pay before the launch, and stops saying so once it was made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coadapt.cli.main import run
from coadapt.testing.planners import metric_after

#: Computing is a tenth of a step on eight GPUs, synchronising the rest: one GPU, which nobody ran, is far cheaper.
COMPUTE_S, SYNC_S, EXAMPLES = 0.002, 0.3, 20_000


def _pass_s(batch: int, workers: int) -> float:
    step_s = COMPUTE_S * batch / workers + (SYNC_S if workers > 1 else 0.0)
    return step_s * EXAMPLES / batch


def _samples(path: Path, workers: tuple[int, ...]) -> None:
    lines = ["batch,workers,epochs,epoch_s,val_acc"]
    for batch in (64, 128, 256):
        for k in workers:
            for passes in (4, 10, 20, 30):
                lines.append(
                    f"{batch},{k},{passes},{_pass_s(batch, k):.3f},{metric_after(batch, passes):.5f}"
                )
    path.write_text("\n".join(lines) + "\n")


def _asked(path: Path) -> list[str]:
    return ["plan", "--samples", str(path), "--gpus", "t4:1..8", "--gpus-per-node", "4", "--target", "val_acc>=0.8", "--deadline", "1h"]  # fmt: skip


def test_a_plan_without_small_runs_asks_for_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, all_of_them = tmp_path / "few.csv", tmp_path / "all.csv"
    _samples(few, (5, 6, 7, 8))
    _samples(all_of_them, (1, 5, 6, 7, 8))
    page = tmp_path / "plan.html"
    assert run([*_asked(few), "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "worth a short run first: batch" in shown
    assert "worth a short run first: batch" in page.read_text()
    assert run([*_asked(few), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["short_run"]["gpus"] < 5
    assert 0.03 <= told["short_run"]["saves"] <= told["short_run"]["likely"] <= 1
    assert run([*_asked(all_of_them), "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["short_run"] is None
    assert known["chosen"]["gpus"] == 1
    assert known["chosen"]["cost"]["value"] < told["chosen"]["cost"]["value"]


def test_other_planners_know_no_doubt_and_ask_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.csv"
    _samples(few, (5, 6, 7, 8))
    assert run([*_asked(few), "--planner", "co-configuration", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["short_run"] is None

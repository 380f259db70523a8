"""``coadapt plan`` says no once, and what would help; its page and its terminal say the same."""

from __future__ import annotations

import json
import re
from datetime import datetime
from html import unescape
from pathlib import Path

import pytest

import coadapt
from coadapt.cli.main import run
from coadapt.testing.planners import metric_after, pass_s
from tests.integration.planning import ASK, prepared


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


def test_a_budget_does_not_make_an_option_later(capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(Path(__file__).parents[2] / "examples" / "runs.csv")
    asked = ["plan", "--samples", runs, "--target", "val_acc>=0.92", "--deadline", "20m", "--budget", "0.3"]
    assert run(asked) == 3
    assert "may be late: chance <1%" not in capsys.readouterr().out


def test_time_cost_and_chance_are_of_the_run_that_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "train.yaml").write_text(
        "name: x\nresources: {accelerators: 't4:1..4'}\nrun: python train.py {batch_size} {epochs}\ntarget: val_acc>=0.8\n"
    )
    words = ["plan", "train.yaml", "--samples", "runs.csv", "--gpus-per-node", "4", "--deadline", "1h"]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    chosen = found["chosen"]
    epochs = int(found["run"].split()[-1])
    assert chosen["epochs"] == epochs == chosen["passes"] >= chosen["passes_expected"]
    assert chosen["total_s"]["value"] == pytest.approx(
        epochs * pass_s(chosen["batch"], chosen["gpus"]), rel=0.1
    )
    assert metric_after(chosen["batch"], epochs) >= 0.8
    assert run([*words, "--stops-at-target", "--json"]) == 0
    stopping = json.loads(capsys.readouterr().out)
    assert stopping["chosen"]["total_s"]["value"] <= chosen["total_s"]["value"]
    assert stopping["stops_at_target"]


def test_no_is_said_once_and_what_would_help_does(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ASK, "--target", "val_acc>=0.9", "--prices", "prices.yaml"]
    assert run([*words, "--deadline", "1m"]) == 3
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("possible ") == 1
    assert "closest option: " in shown.out
    help_ = shown.err.split("possible ")[1]
    deadline = re.search(r"with a deadline of ([\dhms ]+)", help_)
    target = re.search(r"with a target of (val_acc>=[\d.]+)", help_)
    assert deadline
    assert target
    assert run([*words, "--deadline", deadline[1].replace(" ", "")]) == 0
    assert run([*ASK, "--prices", "prices.yaml", "--target", target[1], "--deadline", "1m"]) == 0
    assert run([*words, "--budget", "0.001"]) == 3
    budget = re.search(r"with a budget of \$([\d.]+)", capsys.readouterr().err)
    assert budget
    assert run([*words, "--budget", budget[1]]) == 0


def test_both_limits_too_tight_are_helped_together(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ASK, "--target", "val_acc>=0.8", "--prices", "prices.yaml"]
    assert run([*words, "--deadline", "2s", "--budget", "0.0001"]) == 3
    found = re.search(r"a deadline of ([\dhms ]+) and a budget of \$([\d.]+)", capsys.readouterr().err)
    assert found
    assert run([*words, "--deadline", found[1].replace(" ", ""), "--budget", found[2]]) == 0


def test_a_planner_that_takes_one_option_is_helped_by_what_helps_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*ASK, "--target", "val_acc>=0.8", "--planner", "linear-scaling"]
    assert run([*words, "--deadline", "1s"]) == 3
    shown = capsys.readouterr()
    assert "linear-scaling does not model uncertainty" in shown.err
    assert " to " not in shown.out.splitlines()[1]
    found = re.search(r"a deadline of ([\dhms. ]+)", shown.err.split("possible")[1])
    assert found
    assert run([*words, "--deadline", found[1].strip().replace(" ", "")]) == 0


def test_page_and_terminal_say_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "prices.yaml").write_text("currency: EUR\nt4: 0.5\na100: 3\n")
    words = [
        "plan",
        "--samples",
        "runs.csv",
        "--gpus",
        "t4:1..4,a100:1..2",
        "--gpus-per-node",
        "4",
        "--prices",
        "prices.yaml",
    ]
    assert run([*words, "--epochs", "5", "--deadline", "1h", "--html", "plan.html"]) == 0
    shown = capsys.readouterr()
    page = unescape((here / "plan.html").read_text())
    asked, answer, _, *table = shown.out.splitlines()
    assert asked in page
    assert answer in page
    assert "EUR" in answer
    assert "the work of 5 epochs" in asked
    zone = datetime.now().astimezone().strftime("%Z")
    assert re.search(rf"within 1h \(by \w{{3}} \d{{4}}-\d\d-\d\d \d\d:\d\d {zone}\)", asked)
    for line in table[:12]:
        for cell in re.split(r"\s{2,}", line.strip()):
            assert f">{cell}<" in page
    assert "x a100*" in shown.out
    assert "a100* has no samples" in shown.err
    assert "a100* has no samples" in page
    assert "EPOCHS is the number of passes that do the same work" in shown.err
    planned = coadapt.plan(
        samples="runs.csv",
        gpus="t4:1..4,a100:1..2",
        gpus_per_node=4,
        prices="prices.yaml",
        epochs=5,
        deadline="1h",
    )
    assert answer in str(planned)
    assert "WHY NOT" in str(planned)
    assert planned.feasible
    assert planned.to_dict()["cost_unit"] == "EUR"

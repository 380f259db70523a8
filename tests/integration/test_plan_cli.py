"""``coadapt plan`` as a user runs it: past runs, bad input, and real training processes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

import coadapt
from coadapt.cli.main import run
from coadapt.errors import InputError
from coadapt.testing.planners import BATCHES, REPLICAS, metric_after, pass_s

TRAIN = """
import json, sys, time
batch, epochs = int(sys.argv[1]), int(sys.argv[2])
if batch == 64:
    print("CUDA out of memory"); sys.exit(1)
for epoch in range(1, epochs + 1):
    print("COADAPT " + json.dumps({"epoch": epoch, "epoch_s": 1 + 100 / batch, "val_acc": 1 - 0.5 ** epoch}), flush=True)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = ["batch,workers,epochs,epoch_s,val_acc"]
    for batch in BATCHES:
        for k in REPLICAS:
            for passes in (4, 10, 20, 30):
                lines.append(f"{batch},{k},{passes},{pass_s(batch, k):.3f},{metric_after(batch, passes):.5f}")
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "prices.yaml").write_text("t4: 0.5\n")
    return tmp_path


ASK = ["plan", "--samples", "runs.csv", "--gpus", "t4:1..8", "--per-node", "4"]


def test_a_plan_names_a_row_why_others_lost_and_writes_a_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*ASK, "--target", "val_acc>=0.8", "--deadline", "10m", "--prices", "prices.yaml", "--lr", "0.1"]
    assert run([*words, "--html", "plan.html"]) == 0
    shown = capsys.readouterr().out
    assert "<--" in shown
    assert "dearer" in shown
    assert "LR" in shown
    page = (here / "plan.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http-equiv", "")
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["feasible"]
    assert found["chosen"]["total_s"]["high"] <= 600
    assert found["chosen"]["chance"] >= 0.9
    assert len(found["rows"]) > 30
    planned = coadapt.plan(
        samples="runs.csv",
        gpus="t4:1..8",
        gpus_per_node=4,
        target="val_acc>=0.8",
        deadline="10m",
        prices={"t4": 0.5},
    )
    assert planned.plan.row.option.batch == found["chosen"]["batch"]
    with pytest.raises(InputError, match="did you mean 'deadline'"):
        coadapt.plan(samples="runs.csv", dedline="10m")


def test_a_specification_gives_what_options_do_not(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train.yaml").write_text(
        "name: x\nresources: {accelerators: 't4:1..4'}\nrun: python train.py {batch_size} {epochs}\n"
        "target: val_acc>=0.8\nbatch: {initial: 32, max: 256}\ndeadline: 1h\n"
    )
    assert run(["plan", "train.yaml", "--samples", "runs.csv", "--per-node", "4"]) == 0
    assert "run with: python train.py " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--target", "val_acc>=0.8", "--deadline", "1s"], 3, "no option holds the deadline"),
        (["--target", "val_acc>=0.8", "--deadline", "1s"], 3, "it would do at "),
        (["--target", "val_acc>=0.999", "--deadline", "9h"], 3, "no option holds the target"),
        (["--target", "val_acc>=0.8", "--budget", "0.0001"], 3, "no option holds the budget"),
        (["--target", "val_acc=0.8"], 2, "is not understood"),
        (["--target", "val_acc>=0.8", "--accuracy", "0.8"], 2, "give one of them"),
        (["--accuracy", "0.8", "--minimize", "time", "--maximize", "metric"], 2, "exclude each other"),
        (["--accuracy", "0.8", "--confidence", "2"], 2, "confidence 2 must be"),
        (["--accuracy", "0.8", "--planner", "exakt"], 2, "did you mean 'exact'"),
        (["--accuracy", "0.8", "--batch", "64..32"], 2, "is not a range"),
        (["--accuracy", "0.8", "--deadline", "10s", "--setup", "20s"], 2, "over before the set-up"),
        ([], 2, "how much training"),
        (["--maximize", "metric"], 2, "needs a deadline or a budget"),
    ],
)
def test_every_wrong_or_impossible_question_gets_one_line(
    here: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASK, *words]) == code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("coadapt: ")]
    assert len(errors) == 1
    assert said in errors[0]


def test_a_price_that_is_missing_is_never_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "prices.yaml").write_text("a100: 2\n")
    assert run([*ASK, "--accuracy", "0.8", "--prices", "prices.yaml"]) == 2
    assert "no price for 't4'" in capsys.readouterr().err


def test_one_sample_still_gives_time_and_cost(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs.csv").write_text("batch,workers,epoch_s\n32,1,60\n")
    assert run([*ASK, "--epochs", "10", "--batch", "32..64"]) == 0
    assert run([*ASK, "--target", "val_acc>=0.8", "--batch", "32..64"]) == 2
    assert "nothing is known of the metric" in capsys.readouterr().err


PROFILE = ["plan", "--gpus", "1", "--batch", "32..128"]


def test_profiling_runs_the_command_leaves_out_what_fails_and_resumes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"{sys.executable} train.py {{batch_size}} {{epochs}}"
    words = [
        *PROFILE,
        "--profile",
        command,
        "--target",
        "val_acc>=0.9",
        "--reference-epochs",
        "6",
        "--runs",
        "4",
    ]
    words += ["--resume", "told.json", "--json"]
    assert run(words) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["chosen"]["passes"] == pytest.approx(4, abs=1)
    assert "CUDA out of memory" in shown.err or found["chosen"]["batch"] != 64
    assert len(json.loads((here / "told.json").read_text())) >= 3
    (here / "train.py").write_text("raise SystemExit(9)")
    kept = json.loads((here / "told.json").read_text())
    assert (
        run([*words[:-3], "--runs", str(sum(not each.get("reference") for each in kept)), *words[-3:]]) == 0
    )


def test_profiling_reads_other_scripts_by_regular_expression(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "other.py").write_text(
        "import sys\nfor e in range(int(sys.argv[2])):\n    print(f'epoch {e + 1} took 3.5s acc={1 - 0.5 ** (e + 1)}')\n"
    )
    spec = "target: acc>=0.9\nmetrics: {acc: 'acc=([0-9.]+)', epoch_s: 'took ([0-9.]+)s'}\nbatch: {initial: 32, max: 128}\n"
    (here / "train.yaml").write_text(spec)
    words = [
        "plan",
        "train.yaml",
        "--gpus",
        "1",
        "--profile",
        f"{sys.executable} other.py {{batch_size}} {{epochs}}",
    ]
    assert run([*words, "--reference-epochs", "6", "--runs", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"]["total_s"]["value"] == pytest.approx(4 * 3.5, rel=0.3)
    (here / "train.yaml").write_text(spec.replace("acc=([0-9.]+)", "acc=([0-9.+"))
    assert run([*words, "--runs", "2"]) == 2
    assert "metrics.acc" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python train.py", "the command takes no batch size"),
        ("no-such-program {batch_size}", "cannot run no-such-program"),
        (
            "python -c 'print(3); raise SystemExit(5)' {batch_size}",
            "failed with exit code 5; its last lines: 3",
        ),
        ("python -c 'print(\"training\")' {batch_size}", "reported no pass"),
        ("python 'train.py {batch_size}", "cannot be split into words"),
    ],
)
def test_a_command_that_does_not_work_says_why(
    here: Path, command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = command.replace("python ", f"{sys.executable} ", 1)
    assert run([*PROFILE, "--epochs", "3", "--profile", command]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_run_that_does_not_end_is_stopped_with_all_it_started(here: Path) -> None:
    from coadapt.cli.profile_runs import RunFailedError, run_once

    (here / "stuck.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid)); print('begun', flush=True); time.sleep(60)\n"
    )
    with pytest.raises(RunFailedError, match="stopped after 3 s"):
        run_once(f"{sys.executable} stuck.py", {}, metric=None, limit_s=3)
    pid = int((here / "child").read_text())
    until = time.monotonic() + 10  # a killed process takes a moment to be gone
    while not _gone(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert _gone(pid)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_metric_that_no_run_has_is_not_taken_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(Path(__file__).parents[2] / "examples" / "runs.csv")
    assert run(["plan", "--samples", runs, "--target", "val_loss<=0.95"]) == 2
    assert (
        "has no column 'val_loss'; found: batch, workers, epochs, epoch_s, val_acc, gpu"
        in capsys.readouterr().err
    )
    assert run(["plan", "--samples", runs, "--accuracy", "0.92", "--json"]) == 0


def test_a_budget_does_not_make_an_option_later(capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(Path(__file__).parents[2] / "examples" / "runs.csv")
    asked = ["plan", "--samples", runs, "--target", "val_acc>=0.92", "--deadline", "20m", "--budget", "0.3"]
    assert run(asked) == 3
    assert "in time with 0% only" not in capsys.readouterr().out

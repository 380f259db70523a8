"""``coadapt plan --profile``: real training processes, short, and what they tell."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from coadapt.cli.main import run
from tests.integration.planning import PROFILE, TRAIN, prepared
from tests.waiting import timer_that_waits_for, until


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


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
        "--max-runs",
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
        run([*words[:-3], "--max-runs", str(sum(not each.get("reference") for each in kept)), *words[-3:]])
        == 0
    )


def test_a_run_that_failed_is_kept_and_not_tried_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = TRAIN.replace("batch == 64", "batch == 128").replace("CUDA out of memory", "no such file")
    (here / "train.py").write_text("open('tries', 'a').write('x')\n" + failing)
    command = f"{sys.executable} train.py {{batch_size}} {{epochs}}"
    words = [
        *PROFILE,
        "--profile",
        command,
        "--epochs",
        "4",
        "--max-runs",
        "9",
        "--resume",
        "told.json",
        "--json",
    ]
    assert run(words) == 0
    tries = len((here / "tries").read_text())
    kept = json.loads((here / "told.json").read_text())
    assert [each["batch"] for each in kept if each.get("failed")] == [128]
    assert "no such file" in capsys.readouterr().err
    assert run(words) == 0
    shown = capsys.readouterr()
    assert "batch 128 on 1: failed in an earlier session" in shown.err
    assert 128 not in {row["batch"] for row in json.loads(shown.out)["rows"]}
    assert len((here / "tries").read_text()) == tries
    assert len(json.loads((here / "told.json").read_text())) == len(kept)


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
    # what is around the passes is measured, and long on a busy machine: here only the passes count
    words += ["--setup-time", "0s", "--validation-time", "0s"]
    assert run([*words, "--reference-epochs", "6", "--max-runs", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"]["total_s"]["value"] == pytest.approx(4 * 3.5, rel=0.3)
    (here / "train.yaml").write_text(spec.replace("acc=([0-9.]+)", "acc=([0-9.+"))
    assert run([*words, "--max-runs", "2"]) == 2
    assert "metrics.acc" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python train.py", "the command has no placeholder for the batch size"),
        ("no-such-program {batch_size}", "cannot run no-such-program"),
        (
            "python -c 'print(3); raise SystemExit(5)' {batch_size}",
            "failed with exit code 5; its last lines: 3",
        ),
        ("python -c 'print(\"training\")' {batch_size}", "did not report a pass"),
        ("python 'train.py {batch_size}", "cannot be parsed"),
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


def test_a_run_that_does_not_end_is_stopped_with_all_it_started(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coadapt.planning.short_run import RunFailedError, run_once

    # its time is up when it has done all that it does
    monkeypatch.setattr(threading, "Timer", timer_that_waits_for(here / "begun"))
    (here / "stuck.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('child', 'w').write(str(child.pid)); open('begun', 'w'); time.sleep(600)\n"
    )
    with pytest.raises(RunFailedError, match="stopped after 3 s"):
        run_once(f"{sys.executable} stuck.py", {}, metric=None, limit_s=3)
    pid = int((here / "child").read_text())
    until(lambda: _gone(pid), "a process of the run is left")


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except OSError:
        return True


def test_what_does_not_fit_is_not_planned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train.py").write_text(TRAIN.replace("if batch == 64", "if batch >= 64"))
    words = [
        *PROFILE,
        "--profile",
        f"{sys.executable} train.py {{batch_size}} {{epochs}}",
        "--epochs",
        "4",
        "--max-runs",
        "4",
    ]
    assert run([*words, "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert "CUDA out of memory" in shown.err
    assert max(row["batch"] for row in found["rows"]) < 128


def test_the_example_trains_and_is_planned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[2] / "examples" / "train_digits.py"
    command = f"{sys.executable} {script} --bs {{batch_size}} --workers {{workers}} --epochs {{epochs}} --lr {{lr}} --seed {{seed}}"
    words = [
        "plan",
        "--profile",
        command,
        "--target",
        "val_acc>=0.8",
        "--gpus",
        "cpu:1..2",
        "--batch",
        "64..256",
    ]
    words += [
        "--lr",
        "0.1",
        "--lr-rule",
        "sqrt",
        "--reference-epochs",
        "4",
        "--run-epochs",
        "2",
        "--max-runs",
        "3",
    ]
    assert run([*words, "--resume", "told.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ran = json.loads((here / "told.json").read_text())
    assert len(ran) == 4
    assert all(each["pass_s"] > 0 and each["setup_s"] > 0 for each in ran)
    assert ran[0]["metrics"][-1][1] > 0.7
    assert {each["workers"] for each in ran} == {1, 2}
    assert str(script) in found["run"]
    assert "{" not in found["run"]
    assert any("counted as set-up" in note for note in found["notes"])


def test_reports_of_the_agent_are_understood(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    script = Path(__file__).parents[2] / "examples" / "train_torch.py"
    command = f"{sys.executable} {script} --bs {{batch_size}} --epochs {{epochs}}"
    words = ["plan", "--profile", command, "--target", "val_acc>=0.3", "--gpus", "cpu:1", "--batch", "32..64"]
    assert run([*words, "--reference-epochs", "3", "--max-runs", "1", "--resume", "told.json", "--json"]) == 0
    reference, short = json.loads((here / "told.json").read_text())
    assert [at for at, _ in reference["metrics"]] == [1.0, 2.0, 3.0]
    # gradient statistics, where the machine left the agent time for samples: their budget is a share of the time
    assert all(at > 0 and phi > 0 for at, phi in reference.get("noise", []))
    assert short["pass_s"] > 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"]["epochs"] >= 1
    assert any("--run-epochs 3 says more" in note for note in found["notes"])

"""``coadapt plan`` from past runs: what it answers, what it refuses, and what to submit."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import coadapt
from coadapt.cli.jobs import submit
from coadapt.cli.main import run
from coadapt.client import read_submission
from coadapt.errors import InputError
from coadapt.prediction.remaining.past_jobs import PastJob, Pool
from coadapt.prediction.step_time.step_table import StepTimeRow, StepTimeTable
from coadapt.store.pool_file import write_pool
from tests.integration.planning import ASK, prepared


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


def test_a_plan_names_a_row_why_others_lost_and_writes_a_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*ASK, "--target", "val_acc>=0.8", "--deadline", "10m", "--prices", "prices.yaml", "--lr", "0.1"]
    assert run([*words, "--html", "plan.html"]) == 0
    shown = capsys.readouterr().out
    assert "<-- chosen" in shown
    assert "more expensive" in shown
    assert "LR" in shown
    assert "COST $" in shown
    assert "WHY NOT" in shown
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
    assert run(["plan", "train.yaml", "--samples", "runs.csv", "--gpus-per-node", "4"]) == 0
    assert "run with: python train.py " in capsys.readouterr().out


def test_a_target_that_no_time_is_enough_for_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """It may be reached, but at no moment with the confidence asked for: no deadline would help, and none is proposed."""
    samples = str(Path(__file__).parents[2] / "examples/runs.csv")
    words = [
        "plan",
        "--samples",
        samples,
        "--target",
        "val_acc>=0.999",
        "--deadline",
        "9h",
        "--gpus",
        "t4:1..8",
    ]
    assert run(words) == 3
    said = capsys.readouterr().err
    assert "no option meets the target (val_acc>=0.999)" in said
    assert "possible with a target of val_acc>=0.9" in said
    assert run([*words, "--budget", "40"]) == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--target", "val_acc>=0.8", "--deadline", "1s"], 3, "no option meets the deadline"),
        (["--target", "val_acc>=0.8", "--deadline", "1s"], 3, "no option meets the deadline (1.0s)"),
        (["--target", "val_acc>=0.8", "--deadline", "1s"], 3, "possible with a deadline of "),
        (
            ["--target", "val_acc>=0.8", "--deadline", "2s", "--budget", "0.0001"],
            3,
            "no option meets the deadline (2.0s) and budget (0.0001 GPU-hours) with a chance of 90%; possible with a deadline of ",
        ),
        (["--target", "val_acc>=0.8", "--gpu-memory", "lots"], 2, "'lots' is not a size"),
        (["--target", "val_acc>=0.8", "--lr", "0.1", "--lr-rule", "cube"], 2, "'cube' is not one of"),
        (["--target", "val_acc>=0.8", "--gpus", "t4:1..4,x900:1"], 2, "unknown GPU 'x900'"),
        (["--target", "val_acc>=0.999", "--deadline", "9h"], 3, "no option meets the target"),
        (["--target", "val_acc>=0.8", "--budget", "0.0001"], 3, "no option meets the budget"),
        (["--target", "val_acc=0.8"], 2, "is not valid"),
        (["--target", "val_acc>=0.8", "--accuracy", "0.8"], 2, "give one of them"),
        (["--accuracy", "0.8", "--minimize", "time", "--maximize", "metric"], 2, "exclude each other"),
        (["--accuracy", "0.8", "--confidence", "2"], 2, "confidence 2 must be"),
        (["--accuracy", "0.8", "--planner", "exakt"], 2, "did you mean 'exact'"),
        (["--accuracy", "0.8", "--batch", "64..32"], 2, "is not a range"),
        (["--accuracy", "0.8", "--deadline", "10s", "--setup-time", "20s"], 2, "shorter than the set-up"),
        ([], 2, "amount of training is unknown"),
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
    (here / "best.csv").write_text("batch,workers,epochs,epoch_s,val_acc\n32,1,20,60,0.7\n")
    assert run(["plan", "--samples", "best.csv", "--gpus", "t4:1", "--target", "val_acc>=0.8"]) == 3
    assert "the best val_acc in the past runs is 0.7" in capsys.readouterr().err
    assert run([*ASK, "--target", "val_acc>=0.8", "--batch", "32..64"]) == 2
    assert "the metric is unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run_line", "words"),
    [
        ("python train.py -b {batch_size} --epochs {epochs}", ["python", "train.py", "-b"]),
        ("LOG=1 python train.py {batch_size} | tee out", ["/bin/sh", "-c", "LOG=1 python train.py "]),
    ],
)
def test_what_to_submit_is_what_submit_understands(
    here: Path, run_line: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"name": "digits", "run": run_line, "batch": {"initial": 32, "max": 512}, "data_size": 1000}
    (here / "train.yaml").write_text(json.dumps(spec))
    ask = ["plan", "train.yaml", *ASK[1:], "--target", "val_acc>=0.8", "--deadline", "10m"]
    assert run(ask) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("submit with: ")]
    assert run([*ask, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert line == f"submit with: {found['submit']}"
    given = shlex.split(found["submit"])
    assert given[:2] == ["coadapt", "submit"]
    options = submit.command.make_context("submit", given[2:]).params
    job = read_submission(options.pop("given"), **options).spec
    chosen = found["chosen"]
    assert (job.name, job.gpu_types) == ("digits", ("t4",))
    assert (job.worker.min, job.worker.max) == (chosen["gpus"], chosen["gpus"])
    assert job.batch is not None
    assert (job.batch.initial, job.batch.mode) == (chosen["batch"], "fixed")
    assert job.epochs == chosen["epochs"]
    assert list(job.command[: len(words) - 1]) == words[:-1]
    assert f"{words[-1]}" in " ".join(job.command)
    assert str(chosen["batch"]) in " ".join(job.command)


def test_a_metric_that_no_run_has_is_not_taken_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(Path(__file__).parents[2] / "examples" / "runs.csv")
    assert run(["plan", "--samples", runs, "--target", "val_loss<=0.95"]) == 2
    assert (
        "has no column 'val_loss'; found: batch, workers, epochs, epoch_s, val_acc, gpu"
        in capsys.readouterr().err
    )
    assert run(["plan", "--samples", runs, "--accuracy", "0.92", "--json"]) == 0


def test_memory_of_past_runs_limits_what_one_gpu_holds(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs.csv").write_text("batch,workers,epoch_s,memory_gb\n32,1,60,3\n64,1,50,4\n256,2,20,6\n")
    words = [*ASK, "--epochs", "5", "--batch", "32..256", "--json"]
    assert run([*words, "--gpu-memory", "5GB"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    # 2 GB and 1/32 GB per example: of 4.7 GB there is room for 86
    assert all(row["batch"] / row["replicas"] / (row["accumulation"] + 1) <= 86.5 for row in rows)
    assert any(row["accumulation"] for row in rows)
    assert run(words) == 0
    assert not any(row["accumulation"] for row in json.loads(capsys.readouterr().out)["rows"])
    assert run([*words, "--gpu-memory", "1GB"]) == 2
    assert "a single example does not fit" in capsys.readouterr().err


def test_past_jobs_are_samples(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(
        StepTimeRow(
            "t4",
            1,
            k,
            m,
            20,
            0.02 + 0.002 * m + 0.005 * k,
            0.005,
            0.0,
            0.0,
            0.02 + 0.002 * m + 0.005 * k,
            0.005,
        )
        for k in (1, 2, 4)
        for m in (32, 64, 128)
    )
    past = PastJob(
        name="cifar-run-17", data_size=10_000, batch=64, table=StepTimeTable(rows=rows), noise=((0.0, 200.0), (1.0, 800.0)),
        total_work=300_000.0,
    )  # fmt: skip
    write_pool(here / "pool.json", Pool(jobs=(past,)))
    (here / "train.yaml").write_text(
        "name: cifar-run-18\ndata_size: 10000\nresources: {accelerators: 't4:1..4'}\nbatch: {initial: 64, max: 512}\n"
    )
    words = ["plan", "train.yaml", "--pool", "pool.json", "--json"]
    assert run([*words, "--minimize", "time"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("the work of 30 epochs" in note for note in found["notes"])
    of = {(row["batch"], row["replicas"]): row for row in found["rows"]}
    assert of[64, 1]["passes"] == 30
    assert of[64, 1]["total_s"]["value"] == pytest.approx(30 * 10_000 / 64 * (0.02 + 0.128 + 0.005), rel=0.1)
    assert of[512, 4]["passes"] > 33  # noise says that larger batches need more
    assert run(["plan", "--pool", "pool.json", "--epochs", "3"]) == 2
    assert "compares jobs by name" in capsys.readouterr().err
    (here / "train.yaml").write_text("name: other\ndata_size: 10\nbatch: {initial: 4096, max: 8192}\n")
    assert run(words) == 2
    assert "has no past job similar to 'other'" in capsys.readouterr().err

"""``coadapt plan`` as a user runs it: past runs, bad input, and real training processes."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from datetime import datetime
from html import unescape
from pathlib import Path

import pytest

import coadapt
from coadapt.cli import submit
from coadapt.cli.main import run
from coadapt.errors import InputError
from coadapt.predict.history import PastJob, Pool
from coadapt.predict.step_table import StepTimeRow, StepTimeTable
from coadapt.store.pool import save
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
    assert "<-- chosen" in shown
    assert "dearer" in shown
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
    assert run(["plan", "train.yaml", "--samples", "runs.csv", "--per-node", "4"]) == 0
    assert "run with: python train.py " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--target", "val_acc>=0.8", "--deadline", "1s"], 3, "no option holds the deadline"),
        (["--target", "val_acc>=0.8", "--deadline", "1s"], 3, "no option holds the deadline (1.0s)"),
        (["--target", "val_acc>=0.8", "--deadline", "1s"], 3, "it would do with a deadline of "),
        (
            ["--target", "val_acc>=0.8", "--deadline", "2s", "--budget", "0.0001"],
            3,
            "no option holds the deadline (2.0s) and budget (0.0001 GPU-hours) with a chance of 90%; it would do with a deadline of ",
        ),
        (["--target", "val_acc>=0.8", "--memory", "lots"], 2, "'lots' is not a size"),
        (["--target", "val_acc>=0.8", "--lr", "0.1", "--lr-rule", "cube"], 2, "'cube' is not one of"),
        (["--target", "val_acc>=0.8", "--gpus", "t4:1..4,x900:1"], 2, "unknown GPU 'x900'"),
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
    (here / "best.csv").write_text("batch,workers,epochs,epoch_s,val_acc\n32,1,20,60,0.7\n")
    assert run(["plan", "--samples", "best.csv", "--gpus", "t4:1", "--target", "val_acc>=0.8"]) == 3
    assert "the best val_acc that was ever seen is 0.7" in capsys.readouterr().err
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
        "--runs",
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
    assert "batch 128 on 1: failed before" in shown.err
    assert 128 not in {row["batch"] for row in json.loads(shown.out)["rows"]}
    assert len((here / "tries").read_text()) == tries
    assert len(json.loads((here / "told.json").read_text())) == len(kept)


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
    job, _ = submit._spec(options.pop("given"), options, options.pop("workdir"))
    chosen = found["chosen"]
    assert (job.name, job.gpu_types) == ("digits", ("t4",))
    assert (job.worker.min, job.worker.max) == (chosen["gpus"], chosen["gpus"])
    assert job.batch is not None
    assert (job.batch.initial, job.batch.mode) == (chosen["batch"], "fixed")
    assert job.epochs == chosen["epochs"]
    assert list(job.command[: len(words) - 1]) == words[:-1]
    assert f"{words[-1]}" in " ".join(job.command)
    assert str(chosen["batch"]) in " ".join(job.command)


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
    assert "may be late: chance <1%" not in capsys.readouterr().out


def test_time_cost_and_chance_are_of_the_run_that_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "train.yaml").write_text(
        "name: x\nresources: {accelerators: 't4:1..4'}\nrun: python train.py {batch_size} {epochs}\ntarget: val_acc>=0.8\n"
    )
    words = ["plan", "train.yaml", "--samples", "runs.csv", "--per-node", "4", "--deadline", "1h"]
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
    assert (shown.out + shown.err).count("it would do ") == 1
    assert "nearest: " in shown.out
    help_ = shown.err.split("it would do ")[1]
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
    assert "linear-scaling knows no uncertainty" in shown.err
    assert " to " not in shown.out.splitlines()[1]
    found = re.search(r"a deadline of ([\dhms. ]+)", shown.err.split("it would do")[1])
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
        "--per-node",
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
    assert "5 epochs of work" in asked
    zone = datetime.now().astimezone().strftime("%Z")
    assert re.search(rf"done in 1h, by \w{{3}} \d{{4}}-\d\d-\d\d \d\d:\d\d {zone}", asked)
    for line in table[:12]:
        for cell in re.split(r"\s{2,}", line.strip()):
            assert f">{cell}<" in page
    assert "x a100*" in shown.out
    assert "a100* was not sampled" in shown.err
    assert "a100* was not sampled" in page
    assert "EPOCHS is how many passes do it" in shown.err
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


def test_memory_of_past_runs_limits_what_one_gpu_holds(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs.csv").write_text("batch,workers,epoch_s,memory_gb\n32,1,60,3\n64,1,50,4\n256,2,20,6\n")
    words = [*ASK, "--epochs", "5", "--batch", "32..256", "--json"]
    assert run([*words, "--memory", "5GB"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    # 2 GB and 1/32 GB per example: of 4.7 GB there is room for 86
    assert all(row["batch"] / row["replicas"] / (row["accumulation"] + 1) <= 86.5 for row in rows)
    assert any(row["accumulation"] for row in rows)
    assert run(words) == 0
    assert not any(row["accumulation"] for row in json.loads(capsys.readouterr().out)["rows"])
    assert run([*words, "--memory", "1GB"]) == 2
    assert "not even one example fits" in capsys.readouterr().err


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
    save(here / "pool.json", Pool(jobs=(past,)))
    (here / "train.yaml").write_text(
        "name: cifar-run-18\ndata_size: 10000\nresources: {accelerators: 't4:1..4'}\nbatch: {initial: 64, max: 512}\n"
    )
    words = ["plan", "train.yaml", "--pool", "pool.json", "--json"]
    assert run([*words, "--minimize", "time"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("30 epochs of work" in note for note in found["notes"])
    of = {(row["batch"], row["replicas"]): row for row in found["rows"]}
    assert of[64, 1]["passes"] == 30
    assert of[64, 1]["total_s"]["value"] == pytest.approx(30 * 10_000 / 64 * (0.02 + 0.128 + 0.005), rel=0.1)
    assert of[512, 4]["passes"] > 33  # noise says that larger batches need more
    assert run(["plan", "--pool", "pool.json", "--epochs", "3"]) == 2
    assert "compares jobs by name" in capsys.readouterr().err
    (here / "train.yaml").write_text("name: other\ndata_size: 10\nbatch: {initial: 4096, max: 8192}\n")
    assert run(words) == 2
    assert "has no past job like 'other'" in capsys.readouterr().err


def test_what_does_not_fit_is_not_planned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train.py").write_text(TRAIN.replace("if batch == 64", "if batch >= 64"))
    words = [
        *PROFILE,
        "--profile",
        f"{sys.executable} train.py {{batch_size}} {{epochs}}",
        "--epochs",
        "4",
        "--runs",
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
        "--runs",
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
    assert any("which counts as set-up" in note for note in found["notes"])


def test_reports_of_the_agent_are_understood(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    script = Path(__file__).parents[2] / "examples" / "train_torch.py"
    command = f"{sys.executable} {script} --bs {{batch_size}} --epochs {{epochs}}"
    words = ["plan", "--profile", command, "--target", "val_acc>=0.3", "--gpus", "cpu:1", "--batch", "32..64"]
    assert run([*words, "--reference-epochs", "3", "--runs", "1", "--resume", "told.json", "--json"]) == 0
    reference, short = json.loads((here / "told.json").read_text())
    assert [at for at, _ in reference["metrics"]] == [1.0, 2.0, 3.0]
    # gradient statistics, where the machine left the agent time for samples: their budget is a share of the time
    assert all(at > 0 and phi > 0 for at, phi in reference.get("noise", []))
    assert short["pass_s"] > 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"]["epochs"] >= 1
    assert any("--run-epochs 3 tells more" in note for note in found["notes"])

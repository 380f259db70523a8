"""Wrong and poor input to ``predict``, ``profile`` and ``watch``, as a user would meet it: one clear line, or honest bounds.

Each start of an interpreter with PyTorch takes seconds, so most models are traced in this process; the way through a
subprocess is walked once per command.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coadapt.cli.main import run
from coadapt.errors import InputError
from coadapt.planning import torch_tools
from coadapt.wire.tool_messages import Answer, RunProfiled

MODELS = """
import os
import torch
from torch import nn

class Fails(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error
    def forward(self, x):
        raise self.error

class Reads(nn.Module):
    def forward(self, x):
        if x.sum() > -1e9:
            raise ValueError("not today")
        return x

def between(middle):
    return nn.Sequential(nn.Linear(10, 20), middle, nn.Linear(20, 30))

def fine(): return between(nn.ReLU())
def no_kernel(): return between(Fails(RuntimeError("needs a kernel that is not there")))
def reads_values(): return between(Reads())
def exits(): return between(Fails(SystemExit(3)))
def at_once(): return nn.Sequential(Fails(RuntimeError("no")), nn.Linear(10, 30))
def lazy(): return nn.Sequential(nn.LazyLinear(20), nn.ReLU(), nn.LazyLinear(30))
def nothing(): return Fails(RuntimeError("no"))
def empty(): return nn.Sequential()
def dies(): os._exit(11)
def leaves(): raise SystemExit("no licence")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


@pytest.fixture
def traced_here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models are traced in this process; without PyTorch the test is skipped."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from coadapt.torch.tools.trace_model import RefusedError, trace_target

    def one_answer(tool: str, arguments: list[str], **others: Any) -> Answer:
        assert (tool, arguments[1], arguments[3]) == ("trace_model", "--input", "--batch")
        try:
            return trace_target(arguments[0], [arguments[2]], int(arguments[4]))
        except RefusedError as refused:
            raise InputError(str(refused)) from None

    monkeypatch.setattr(torch_tools, "one_answer", one_answer)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "models", None)
    return here


def predict(name: str, *more: str, shape: str = "10", gpu: str = "p100") -> int:
    return run(["predict", f"models.py:{name}", "--input", shape, "--batch", "4", "--gpu", gpu, *more])


@pytest.mark.parametrize(
    ("name", "layer", "reason", "traced"),
    [
        ("no_kernel", "'1'", "RuntimeError: needs a kernel that is not there", 1),
        ("reads_values", "'1'", "ValueError: not today", 1),
        ("exits", "'1'", "SystemExit: 3", 1),
        ("at_once", "'0'", "RuntimeError: no", 0),
    ],
)
def test_model_that_cannot_be_traced_names_layer_and_reason_and_gives_bounds(
    traced_here: Path, name: str, layer: str, reason: str, traced: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict("fine", "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert predict(name, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["lower_bound"] is True
    assert f"layer {layer} cannot be traced ({reason}); the figures are lower bounds" in answer["notes"][0]
    assert answer["largest_batch"] is None
    # what was traced, and one for every parameter that was not
    assert answer["methods"].get("learned", 0) == traced
    assert 0 < answer["step_s"]["low"] <= whole["step_s"]["value"]
    assert predict(name) == 0
    assert "at least" in capsys.readouterr().out


def test_lazy_modules_learn_their_shapes_from_the_input(
    traced_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict("fine", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert predict("lazy", "--json") == 0
    assert json.loads(capsys.readouterr().out)["step_s"] == plain["step_s"]


@pytest.mark.parametrize(
    ("name", "shape", "code", "said"),
    [
        ("fine", "7", 2, "the model fails on --input 7 in layer '0': RuntimeError: mat1 and mat2 shapes"),
        (
            "nothing",
            "10",
            2,
            "layer 'Fails' cannot be traced (RuntimeError: no), and nothing comes before or after",
        ),
        ("empty", "10", 2, "the model has no layers, so there is nothing to predict"),
        ("leaves", "10", 2, "models.py:leaves fails: SystemExit: no licence"),
    ],
)
def test_model_of_which_nothing_can_be_said_is_one_line(
    traced_here: Path, name: str, shape: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(name, shape=shape) == code
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_interpreter_that_dies_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert predict("dies") == 1
    said = capsys.readouterr().err
    assert "coadapt.torch.tools.trace_model ended with exit code 11 before it answered" in said
    assert said.count("\n") == 1


def test_either_learner_can_be_chosen(traced_here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for learner in ("trees", "network"):
        assert predict("fine", "--json", "--layer-model", learner) == 0
        found[learner] = json.loads(capsys.readouterr().out)
        assert found[learner]["layers_by"] == learner
        assert found[learner]["methods"]["learned"] == 2
    assert found["trees"]["step_s"] != found["network"]["step_s"]
    assert predict("fine", "--layer-model", "forest") == 2


@pytest.mark.parametrize("gpu", ["v10", "quantum9", ""])
def test_unknown_gpu_says_what_is_near_and_how_to_calibrate(
    here: Path, gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict("fine", gpu=gpu) == 2
    said = capsys.readouterr().err
    assert ("did you mean 'v100'?" if gpu == "v10" else "known: a10,") in said
    assert "--layer-times FILE, written by 'coadapt profile layers -o FILE'" in said
    assert said.count("\n") == 1


def measured(path: Path, device: str, dense: int) -> None:
    """A file of so many dense layers."""
    import msgspec

    from coadapt.prediction.layers import Measured
    from coadapt.wire.tool_messages import LayerMeasured, encode
    from tests.unit.prediction.layers.samples import a_dense

    lines = []
    for i in range(dense):
        one = Measured(layer=a_dense(8 + i, 64, 64), optimizer="sgd", seconds=1e-3)
        raw = msgspec.Raw(msgspec.json.encode(one))
        lines.append(encode(LayerMeasured(index=i, device=device, measured=raw)) + b"\n")
    with path.open("ab") as stream:
        stream.writelines(lines)


def test_too_few_measured_layers_leave_the_interval_wide_and_say_so(
    traced_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for dense in (3, 12):
        path = traced_here / f"{dense}.jsonl"
        measured(path, "NVIDIA A100-SXM4-40GB", dense)
        assert predict("fine", "--json", "--layer-times", path.name, gpu="a100") == 0
        answers.append(json.loads(capsys.readouterr().out))
    few, enough = answers
    assert "fewer than 5 layers measured of activation (0), dense (3)" in few["notes"][0]
    assert "fewer than 5 layers measured of activation (0):" in enough["notes"][0]
    assert (few["methods"], enough["methods"]) == (
        {"analytic": 1, "projected": 2},
        {"analytic": 1, "calibrated": 2},
    )
    few_s, enough_s = few["compute_s"], enough["compute_s"]
    assert few_s["high"] / few_s["low"] > enough_s["high"] / enough_s["low"]


@pytest.mark.parametrize(
    ("device", "gpu", "said"),
    [
        ("cpu", "a100", "was measured on cpu and cannot be used for --gpu a100"),
        ("Tesla K80", "cpu", "was measured on Tesla K80 and cannot be used for --gpu cpu"),
    ],
)
def test_layers_of_a_cpu_say_nothing_about_a_gpu(
    traced_here: Path, device: str, gpu: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(traced_here / "m.jsonl", device, 6)
    assert predict("fine", "--layer-times", "m.jsonl", gpu=gpu) == 2
    assert said in capsys.readouterr().err


def test_layers_of_another_gpu_are_used_and_said(
    traced_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(traced_here / "m.jsonl", "Quantum 9", 6)
    assert predict("fine", "--layer-times", "m.jsonl", gpu="h100") == 0
    assert "layers measured on Quantum 9 correct the figures of h100" in capsys.readouterr().err


def test_file_of_two_devices_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(here / "m.jsonl", "Tesla K80", 2)
    measured(here / "m.jsonl", "cpu", 2)
    assert predict("fine", "--layer-times", "m.jsonl", gpu="k80") == 2
    assert (
        "m.jsonl was measured on Tesla K80, not on cpu; write one file per device" in capsys.readouterr().err
    )


@pytest.mark.parametrize("loss", ["0.6931", "nan", "inf"])
def test_constant_or_missing_losses_do_not_disturb_the_time_left(
    here: Path, loss: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stamp = "2024-01-01 00:{:02d}:{:02d}"
    lines = [f"{stamp.format(*divmod(5 * i, 60))} step {i}/100 loss: {loss}\n" for i in range(1, 60)]
    (here / "train.log").write_text("".join(lines))
    assert run(["watch", "train.log", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["eta_low_s"] <= 41 * 5 <= answer["eta_high_s"]
    assert answer["not_numbers"] == ([] if loss == "0.6931" else ["loss"])


def test_a_loss_that_is_not_a_number_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{{'loss': nan, 'learning_rate': 5e-05, 'epoch': {n / 10}}}\n" for n in range(1, 20)]
    (here / "train.log").write_text("".join(lines))
    assert run(["watch", "train.log", "--total", "3"]) == 0
    shown = capsys.readouterr().out
    assert "loss is not a number" in shown
    assert "1.9 of 3 epochs" in shown


@pytest.mark.parametrize("shape", ["-3x5", "9" * 30, "1000000x1000000"])
def test_shape_that_is_none_is_refused_before_any_process(
    here: Path, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict("fine", "--python", "/bin/false", shape=shape) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"coadapt: --input '{shape[:20]}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("text", ["", "loading data\nhello\n", "loss: 0.5\nloss: 0.4\n"])
def test_log_without_batch_lines_says_what_is_understood(
    here: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "train.log").write_text(text)
    assert run(["watch", "train.log"]) == 3
    said = capsys.readouterr().err
    assert "train.log contains no recognised progress lines; supported are, for example," in said
    assert said.count("\n") == 1


SCRIPT = """
import sys, torch
x = torch.ones(50, 50, requires_grad=True)
for _ in range(20):
    (x @ x).sum().backward()
print("noise on standard output")
"""


def test_profile_run_draws_and_writes_a_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (here / "train.py").write_text(SCRIPT)
    words = [
        "profile",
        "run",
        "--top",
        "3",
        "--html",
        "time.html",
        "--",
        "python",
        "train.py",
        "--epochs",
        "1",
    ]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "types of operation make 90% of the time on the cpu" in shown
    assert "# share  * total  | 90%" in shown
    assert " mm " in shown
    assert "noise" not in shown
    assert "<svg" in (here / "time.html").read_text()
    # the page is not replaced unasked, and that is said before the run
    (here / "train.py").write_text("raise OSError('ran')")
    assert run(words) == 2
    assert "time.html exists; choose another name, or replace it by --force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "-- python train.py",
            "train.py ran for 1.0 s without a PyTorch operation; there is nothing to report",
        ),
        ("-- bash train.sh", "'bash train.sh' is not a Python script; write: -- python train.py ..."),
        ("-- python none.py", "file not found: none.py"),
        ("--seconds 0 -- python train.py", "0 is not more than 0"),
    ],
)
def test_profile_run_of_nothing_is_one_line_and_no_page(
    here: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = RunProfiled(operations=(), wall_s=1.0, device="cpu")
    monkeypatch.setattr(torch_tools, "one_answer", lambda *arguments, **others: nothing)
    (here / "train.py").write_text("x = 1")
    assert run(["profile", "run", "--html", "time.html", *words.split()]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
    assert list(here.glob("*time*")) == []


def test_profile_run_of_a_script_that_fails_says_why(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (here / "train.py").write_text("raise ValueError('no data')")
    assert run(["profile", "run", "--", "python", "train.py"]) == 2
    assert capsys.readouterr().err == "coadapt: train.py failed: ValueError: no data\n"

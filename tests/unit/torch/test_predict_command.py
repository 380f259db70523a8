"""The command ``predict`` end to end. The first test needs PyTorch, the others fail before any is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coadapt.cli.main import run

_MODEL = """
from torch import nn
def build_model():
    print("noise on standard output")
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))
"""


def test_predict_answers_with_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "train.py").write_text(_MODEL)
    words = f"predict {tmp_path}/train.py:build_model --input 3x8x8 --batch 4 --gpu p100 --replicas 2 --json"
    assert run([*words.split(), "--data-size", "100", "--epochs", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["steps_per_pass"] == 13
    assert answer["methods"] == {"learned": 2}
    for key in ("step_s", "pass_s", "total_s", "peak_memory_bytes"):
        assert 0 < answer[key]["low"] < answer[key]["value"] < answer[key]["high"]
    assert answer["total_s"]["value"] == pytest.approx(39 * answer["step_s"]["value"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gpu v10", "did you mean 'v100'"),
        ("--gpu t4 --optimizer adm", "did you mean 'adam'"),
        ("--gpu t4 --precision fp61", "did you mean 'fp16'"),
        ("--gpu t4 --epochs 3", "--epochs needs --data-size"),
        ("--gpu t4 --layer-times none.jsonl", "cannot read none.jsonl"),
        ("--gpu t4 --python nosuchpython", "no such program"),
    ],
)
def test_wrong_input_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "train.py:build_model", "--input", "3", "--batch", "4", *words.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_file_of_measured_layers_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layers.jsonl"
    path.write_text("{}\n")
    words = [
        "predict",
        "train.py:f",
        "--input",
        "3",
        "--batch",
        "4",
        "--gpu",
        "cpu",
        "--layer-times",
        str(path),
    ]
    assert run(words) == 2
    assert "layers.jsonl:1 is not a line of 'coadapt profile layers'" in capsys.readouterr().err

"""``coadapt test-resize`` finds a safe script safe and an unsafe one unsafe; ``compare`` sees what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.cli.main import run
from coadapt.torch.tools.rehearse import compare
from tests.integration.torch_forks import SCRIPTS


def test_a_safe_script_is_found_safe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "RESULT": str(tmp_path / "result"),
        "STEP_S": "0.02",
        "EVERY_S": "0.2",
        "EPOCHS": "4",
        "SLOW_AFTER": "15",
        "SLOW_S": "2",  # it is to be stopped after its tenth step
    }.items():
        monkeypatch.setenv(name, value)
    words = "test-resize --replicas 2 --disturbances 3 --seed 7 --json -- python"
    code = run([*words.split(), str(SCRIPTS / "steady.py")])
    answer = json.loads(capsys.readouterr().out)
    assert answer["safe"], answer
    assert code == 0
    assert answer["steps"] == 52
    assert answer["disturbances"] >= 1
    assert answer["largest_jump"] < 1e-9


def _journal(path: Path, steps: list[tuple[int, int, float]]) -> Path:
    lines = [
        {"step": s, "passes": 0, "position": p, "batch": 8, "replicas": 1, "parameters": [v, v]}
        for s, p, v in steps
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9, "pas')
    return path


def test_compare_sees_lost_examples_and_lost_state(tmp_path: Path) -> None:
    from coadapt.torch.tools.rehearse import committed

    good = [(1, 8, 1.0), (2, 16, 2.0), (3, 24, 3.0)]
    reference = committed(_journal(tmp_path / "good", good))
    again = _journal(tmp_path / "again", [*good[:2], (2, 16, 2.0), good[2]])
    found = compare(reference, again, 1, 1e-5)
    assert (found.safe, found.repeated) == (True, 1)
    assert not compare(reference, again, 0, 1e-5).safe  # nothing was tried
    assert not compare(
        reference, _journal(tmp_path / "a", [good[0], (2, 24, 2.0), (3, 32, 3.0)]), 1, 1e-5
    ).safe
    assert not compare(reference, _journal(tmp_path / "b", good[:2]), 1, 1e-5).same_examples
    lost = compare(reference, _journal(tmp_path / "c", [good[0], (2, 16, 2.1), (3, 24, 3.0)]), 1, 1e-5)
    assert lost.same_examples
    assert not lost.safe
    assert lost.final_difference == 0
    assert lost.first_difference == 0
    assert compare(reference, _journal(tmp_path / "d", [(1, 8, 1.5)]), 1, 1e-5).first_difference == 0.5


UNSEEDED = """
import torch
import coadapt.torch as coadapt

job = coadapt.init()
model = torch.nn.Linear(64, 8)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.ones(32, 64), torch.ones(32, 8))
loader = job.loader(data, batch_size=8)
for _ in job.epochs(2):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


def test_a_script_without_a_seed_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNSEEDED)
    assert run(["test-resize", "--replicas", "1", "--disturbances", "1", "--", "python", str(script)]) == 3
    assert "torch.manual_seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-- echo hello", "is not a Python script"),
        ("-- python none.py", "file not found: none.py"),
        ("--tolerance nan -- python none.py", "--tolerance"),
        ("--replicas 0 -- python none.py", "0 is not in the range"),
    ],
)
def test_bad_input_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["test-resize", *words.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_script_without_coadapt_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain.py").write_text("print('trained')")
    assert run(["test-resize", "--", "python", str(tmp_path / "plain.py")]) == 2
    assert "made no step through coadapt.torch" in capsys.readouterr().err

"""The author's story, as the README tells it: its diff, applied to a plain PyTorch script, trains before and after."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

README = Path(__file__).parents[2] / "README.md"
#: What stands around the lines of the diff.
PLAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
y = (x.sum(1) > 0).long()
dataset = TensorDataset(x, y)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)


def step(a, b):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(a), b).backward()
    optimizer.step()
    schedule.step()


def accuracy(net):
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())

"""


def _scripts() -> dict[str, str]:
    """Before and after the diff; two epochs instead of ninety, and the loop's body in the place of its dots."""
    diff = re.search(r"```diff\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert diff is not None
    found = {}
    for name, kept in (("before", " -"), ("after", " +")):
        lines = [line[1:] for line in diff[1].splitlines() if line[0] in kept]
        text = "\n".join(lines).replace("(90)", "(2)")
        text, bodies = re.subn(r"in loader: \.\.\..*", "in loader:\n        step(x, y)", text)
        assert bodies == 1
        found[name] = f"{PLAIN}{text}\nprint('accuracy', accuracy(model))\n"
    return found


@pytest.mark.parametrize("which", ["before", "after"])
def test_diff_of_the_readme(which: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    # the loop's own names are not those of the data
    script.write_text(
        _scripts()[which].replace("for x, y in", "for a, b in").replace("step(x, y)", "step(a, b)")
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    said = re.search(r"accuracy ([\d.]+)", done.stdout)
    assert said is not None
    assert float(said[1]) > 0.8

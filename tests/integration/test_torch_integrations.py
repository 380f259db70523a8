"""Callbacks in the real trainers of others: reports, a checkpoint and exit code 143 on SIGTERM, and going on from there."""

from __future__ import annotations

import importlib.util
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.model import Measurement
from coadapt.wire.agent import from_line
from tests.integration.torch_forks import Replicas
from tests.waiting import until

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None,
    reason="transformers and accelerate are not installed",
)
needs_lightning = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)
CASES = [
    pytest.param("huggingface.py", 1, marks=needs_transformers),
    pytest.param("huggingface.py", 2, marks=needs_transformers),
    pytest.param("lightning_run.py", 1, marks=needs_lightning),
    pytest.param("lightning_run.py", 2, marks=needs_lightning),
]


def _measured(said: str) -> list[Measurement]:
    reports = [report for line in said.splitlines() if (report := from_line(line)) is not None]
    assert [report.number for report in reports] == list(range(1, len(reports) + 1))
    return [each for report in reports for each in report.measurements]


def _steps(said: str) -> list[int]:
    return [int(number) for number in re.findall(r"^step (\d+)$", said, re.MULTILINE)]


@pytest.mark.parametrize(("script", "count"), CASES)
def test_a_trainer_that_is_told_to_stop_saves_leaves_and_goes_on(
    script: str, count: int, tmp_path: Path
) -> None:
    envs = {"COADAPT_CHECKPOINTS": str(tmp_path / "kept"), "COADAPT_JOB": "j", "EPOCHS": "3000"}
    first = Replicas(script, count, tmp_path / "0", COADAPT_ATTEMPT="0", STEP_S="0.05", **envs)
    alive = lambda: all(process.is_alive() for process in first.processes)  # noqa: E731
    until(lambda: len(_steps(first.output())) >= 12 or not alive(), first.output)
    assert alive(), first.output()
    # one of them is told; all must leave, after the same step
    first.signal(signal.SIGTERM, ranks=[count - 1])
    assert first.wait() == [143] * count, first.output()
    last = _steps(first.output())[-1]
    assert {_steps(first.output(rank))[-1] for rank in range(count)} == {last}
    measured = _measured(first.output())[-1]
    assert measured.config.replicas == count
    assert (measured.config.atomic_batch, measured.config.accumulation) == (4, 1)
    assert measured.count > 0
    assert measured.step_s >= 0.05
    assert measured.work is not None
    assert 0 < measured.work < 3000 * 64
    assert measured.grad_var is not None
    assert measured.grad_var > 0

    second = Replicas(script, count, tmp_path / "1", COADAPT_ATTEMPT="1", **{**envs, "EPOCHS": "4"})
    goal = 4 * 64 // (8 * count)
    assert second.wait() == [0] * count, second.output()
    done = int(re.findall(r"^done (\d+)$", second.output(), re.MULTILINE)[0])
    made = _steps(second.output())
    # it went on after the last step, and not from the beginning; where that was beyond the end there is nothing to do
    assert done == max(goal, last)
    assert not made or made[0] >= last
    assert "loss" in _measured(second.output())[-1].metrics
    for rank in range(1, count):
        assert not _measured(second.output(rank)), "only the first replica reports"

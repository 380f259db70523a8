"""Resizing in place: the same processes go on, newcomers join, the first replica may leave."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.torch.launch import Launcher
from tests.integration.test_torch_elastic import (
    ENDLESS,
    STEPS,
    alone,
    committed,
    made_again,
)
from tests.integration.torch_forks import SCRIPTS, until_more_steps


def test_one_two_four_one_in_place_then_restarted_learns_the_same(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    audit.touch()
    envs = {
        "RESULT": str(tmp_path / "result"),
        "COADAPT_AUDIT": str(audit),
        "COADAPT_CHECKPOINTS": str(tmp_path / "kept"),
        "EPOCHS": ENDLESS,
        "STEP_S": "0.1",
        "LATE_S": "0.2",
        "MEANS": str(tmp_path / "means"),
    }
    launcher = Launcher([sys.executable, str(SCRIPTS / "steady.py")], envs=envs, logs=tmp_path / "logs")
    try:
        launcher.start(1)
        for count in (2, 4, 1):
            # over the end of an epoch, which newcomers must reach as the others do
            until_more_steps(audit, STEPS + 1)
            launcher.resize(count)
            assert len(launcher.running) == count
        until_more_steps(audit, 2)
        assert launcher.stop() == [143]
        launcher.start(2)
        until_more_steps(audit, 2)
        assert launcher.stop() == [143, 143]
    finally:
        launcher.kill()
    means = {tuple(map(float, line.split())) for line in (tmp_path / "means").read_text().splitlines()}
    # the average of ranks: the numbers of every replica are in it, newcomers' too
    assert means == {(1, 0.0), (2, 0.5), (4, 1.5)}
    disturbed = committed(audit)
    undisturbed = alone(tmp_path / "quiet", len(disturbed))
    assert {step["replicas"] for step in disturbed} == {1, 2, 4}
    assert made_again(audit) == []  # the stop saved the last step
    for ours, theirs in zip(disturbed, undisturbed, strict=False):
        assert [ours[key] for key in ("step", "passes", "position")] == [
            theirs[key] for key in ("step", "passes", "position")
        ]
        assert ours["parameters"] == pytest.approx(theirs["parameters"], abs=1e-5), json.dumps(ours)

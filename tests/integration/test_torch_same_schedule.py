"""A run is repeated from its history, on another number of replicas: the same steps, larger ones included, the same parameters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.integration.torch_forks import run


def _came_to(said: str) -> tuple[int, float]:
    found = re.search(r"steps (\d+) parameters (\S+)", said)
    assert found, said
    return int(found[1]), float(found[2])


def test_a_lone_replicas_schedule_is_repeated_by_two(tmp_path: Path) -> None:
    saved = tmp_path / "history.jsonl"
    steps, parameters = _came_to(run("repeated.py", 1, tmp_path / "one", SAVED=str(saved)))
    again, same = _came_to(run("repeated.py", 2, tmp_path / "two", SAME=str(saved)))
    assert again == steps
    assert same == pytest.approx(parameters, abs=1e-9)

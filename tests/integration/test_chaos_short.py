"""Chaos in short: two rounds of ``python -m benchmarks.chaos`` on a home of the test's own, with control groups and without."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import chaos_rounds
from benchmarks.chaos_rounds import Rounds

pytest.importorskip("starlette", reason="the API is not installed (the extra server)")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, for sockets have names of at most 108 letters."""
    path = Path(tempfile.mkdtemp(prefix="coadapt-chaos-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("groups", [True, False], ids=["groups", "no-groups"])
def test_nothing_is_lost_or_runs_twice_whatever_dies(directory: Path, groups: bool) -> None:
    found = Rounds(directory, seed=7, policy="fifo", groups=groups).run(2, round_s=1.5, longest_s=1.0)
    assert found["wrong"] == {name: [] for name in found["wrong"]}
    assert found["jobs"] > 0
    assert found["replicas"] > 0
    assert found["controllers"] > 1


@pytest.mark.long
def test_restored_cluster_goes_on_where_its_backup_was(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup under load, the death of everything, and another home: what came after the backup is asked for again."""
    monkeypatch.setattr(chaos_rounds, "DISASTERS", {"restore": 1})
    found = Rounds(directory, seed=3, policy="fifo").run(1, round_s=1.5, longest_s=1.0)
    assert found["wrong"] == {name: [] for name in found["wrong"]}
    assert found["disasters"]["restore"] > 0

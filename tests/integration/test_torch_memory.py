"""One replica runs out of memory, in either half of a pass: all learn what they would have, and all divide as it must."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.integration.torch_forks import (
    Replicas,
    run,
)


def _came_to(said: str) -> tuple[str, int, int]:
    found = re.search(r"parameters (\S+) atomic (\d+) too many (\d+)", said)
    assert found, said
    return found[1], int(found[2]), int(found[3])


@pytest.mark.parametrize(
    ("where", "small", "sync"),
    [("backward", "1", "ring"), ("backward", "0", "ring-late"), ("forward", "1", "ring")],
)
def test_out_of_memory_on_one_replica_is_agreed_on_by_all(
    where: str, small: str, sync: str, tmp_path: Path
) -> None:
    plenty, atomic, _ = _came_to(run("little_memory.py", 1, tmp_path / "one", WHERE="nowhere", SMALL="9"))
    assert atomic == 24
    replicas = Replicas("little_memory.py", 2, tmp_path / "two", WHERE=where, SMALL=small, SYNC=sync)
    codes = replicas.wait()
    assert codes == [0, 0], replicas.output(0) + replicas.output(1)
    for rank in range(2):
        found, atomic, too_many = _came_to(replicas.output(rank))
        assert float(found) == pytest.approx(float(plenty), abs=1e-9)
        # 12 and its repetition in the first step, then two passes of 6 and theirs, until all know the limit: in a few of the 80
        # steps, how many depends on the machine
        assert atomic == 3
        assert too_many <= 3 * 40
        assert (too_many > 0) == (str(rank) == small)

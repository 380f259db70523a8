from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.executors.gang.verdict import Exit, judge


def exits(*codes: tuple[int, bool]) -> list[Exit]:
    return [Exit(rank=rank, code=code, asked=asked) for rank, (code, asked) in enumerate(codes)]


@pytest.mark.parametrize(
    ("found", "end", "rank"),
    [
        (exits((0, False), (0, False)), "succeeded", None),
        (exits((0, True), (0, True)), "stopped", 0),  # nothing says that it had finished
        (exits((0, False), (0, True)), "stopped", 1),
        (exits((3, False), (-15, True)), "failed", 0),
        (exits((0, False), (-9, False)), "failed", 1),  # the kernel's out-of-memory killer
        (exits((143, True), (0, True)), "stopped", 0),
        (exits((0, True), (3, False)), "failed", 1),
        (exits((143, False), (143, True)), "stopped", 0),
        (exits((-15, True), (-9, True)), "stopped", 0),
        (exits((1, True), (143, True)), "stopped", 1),  # a peer fails because the other left
        (exits((1, True)), "failed", 0),
        (exits((-11, True)), "failed", 0),  # a crash is not our signal
    ],
)
def test_judge_reads_the_exits_together(found: list[Exit], end: str, rank: int | None) -> None:
    kind, why = judge(found)
    assert kind == end
    assert (why.rank if why else None) == rank


@given(st.lists(st.tuples(st.integers(-31, 255), st.booleans()), min_size=1))
def test_judge_never_calls_success_what_was_not(codes: list[tuple[int, bool]]) -> None:
    end, why = judge(exits(*codes))
    assert (end == "succeeded") == all(code == 0 and not asked for code, asked in codes)
    if any(code not in (0, 143, -15) and not asked for code, asked in codes):
        assert end == "failed"
    if end == "failed":
        assert why is not None
        assert why.exit_code > 0


def test_exit_code_of_a_signal_is_the_shells() -> None:
    killed = Exit(rank=2, code=-9, asked=False)
    assert killed.exit_code == 137
    assert str(killed) == "replica 2 was killed by signal 9"

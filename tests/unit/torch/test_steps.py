"""Who computes what of a step: every example once, weights that add up to one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given
from hypothesis import strategies as st

from coadapt.torch.training.step_plan import (
    OFTEN,
    Split,
    Step,
    even_split,
    plan,
    plan_at,
    spread,
)

splits = st.builds(
    Split,
    st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any).map(tuple),
    st.integers(1, 20),
)


@given(splits, st.data())
def test_every_example_is_in_one_piece_that_counts(split: Split, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, split.batch))
    seen: list[int] = []
    for rank in range(len(split.shares)):
        step = plan(split, rank, batch)
        assert [piece.last for piece in step.pieces] == [False] * (len(step.pieces) - 1) + [True]
        for piece in step.pieces:
            assert 1 <= piece.end - piece.begin <= max(split.atomic, 1)
            if piece.weight > 0:
                seen += range(piece.begin, piece.end)
    assert seen == list(range(batch))


@given(splits, st.data())
def test_weights_of_all_replicas_add_up_to_one(split: Split, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, split.batch))
    steps = [plan(split, rank, batch) for rank in range(len(split.shares))]
    pieces = [piece for step in steps for piece in step.pieces if piece.weight > 0]
    assert sum(piece.weight for piece in pieces) == pytest.approx(1)
    sizes = [piece.end - piece.begin for piece in pieces]
    assert steps[0].parts == len(sizes)
    assert steps[0].mean_inverse == pytest.approx(sum(1 / size for size in sizes) / len(sizes))
    # all replicas must come to the same view of the step: it decides who talks to whom
    assert len({(step.even, step.parts, step.mean_inverse) for step in steps}) == 1
    if steps[0].even:
        assert len(set(sizes)) == 1
        assert len({len(step.pieces) for step in steps}) == 1


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_spread_is_whole_and_fair_to_one_example(batch: int, speeds: list[float]) -> None:
    shares = spread(batch, speeds)
    assert sum(shares) == batch
    for share, speed in zip(shares, speeds, strict=True):
        assert abs(share - batch * speed / sum(speeds)) < 1 + 1e-6


def test_fewer_examples_than_replicas_borrow_one() -> None:
    split = even_split(8, 4, 2)
    weights = [[piece.weight for piece in plan(split, rank, 2).pieces] for rank in range(4)]
    assert weights == [[0.5], [0.5], [0.0], [0.0]]
    assert plan(split, 3, 2).even is False


def _walk(split: Split, length: int, numbers: int) -> list[tuple[int, int, Step]]:
    """(pass, position, step) of the first passes."""
    found = []
    for number in range(numbers):
        position = 0
        while position < length:
            step = plan_at(split, 0, number=number, position=position, length=length)
            found.append((number, position, step))
            position += step.batch
    return found


@given(st.integers(2, 30), st.integers(OFTEN, 9), st.integers(1, 100), st.floats(1, 2))
def test_once_in_so_many_steps_one_has_two_passes_and_the_place_tells_which(
    batch: int, twice: int, length: int, larger: float
) -> None:
    split = Split((batch,), batch, twice, int(larger * batch))
    walked = _walk(split, length, 5)
    marks = range(0, 5 * length, twice * batch)
    due = set()
    for number, position, step in walked:
        where, left = number * length + position, length - position
        if marked := any(where <= mark < where + min(batch, left) for mark in marks):
            due.add(where)
        assert step.batch == min(split.double if marked else batch, left)
        assert [piece.begin for piece in step.pieces[1:]] == [piece.end for piece in step.pieces[:-1]]
        assert (step.pieces[0].begin, step.pieces[-1].end) == (0, step.batch)
        assert max(piece.end - piece.begin for piece in step.pieces) <= batch
        # one example cannot be divided
        assert len(step.pieces) == step.parts == (2 if marked and step.batch > 1 else 1)
    # one for every mark, and none is in sight where there is none
    assert len(due) == len(marks)
    for number, position, _ in walked:
        where = number * length + position
        ahead = split.until_twice(where)
        assert not any(
            where + step * batch in due for step in range(min(ahead, (length - position) // batch))
        )


def test_a_split_without_such_steps_has_none() -> None:
    assert all(len(step.pieces) == 1 for *_, step in _walk(Split((8,), 8), 90, 2))

"""Who computes what of a step: every example once, weights that add up to one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given
from hypothesis import strategies as st

from coadapt.torch.steps import Split, even_split, plan, spread

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

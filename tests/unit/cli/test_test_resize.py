"""What ``coadapt test-resize`` says of a script that it did not find safe."""

from __future__ import annotations

import pytest

from coadapt.cli.test_resize import _why_not
from coadapt.wire.tool_messages import Rehearsed


def _found(*, disturbances: int = 3, largest: float = 0.0, first: float = 0.0) -> Rehearsed:
    return Rehearsed(
        steps=96, disturbances=disturbances, repeated=0, same_examples=True, largest_jump=largest, final_difference=0.0,
        tolerance=1e-5, first_difference=first,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (_found(disturbances=0), "before the first disturbance"),
        (_found(largest=0.9, first=0.8), "torch.manual_seed"),
        (_found(largest=0.9, first=1e-6), "lost state"),
    ],
)
def test_what_is_wrong_is_told_apart(found: Rehearsed, said: str) -> None:
    assert not found.safe
    assert said in _why_not(found)


def test_undisturbed_differences_within_the_tolerance_are_safe() -> None:
    assert _found(largest=1e-6, first=1e-7).safe

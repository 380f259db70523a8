from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.prediction.remaining.work import RemainingEvidence, remaining
from coadapt.spec.target import Target, parse_target, stored_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("val_acc>=0.93", ("val_acc", True, 0.93)),
        ("val_acc > 0.92", ("val_acc", True, 0.92)),
        ("val_acc=>92%", ("val_acc", True, 0.92)),
        ("top-1 acc>=0.9", ("top-1 acc", True, 0.9)),
        ("wer=<25", ("wer", False, 25.0)),
        ("loss<-1e-3", ("loss", False, -1e-3)),
    ],
)
def test_target_is_understood(text: str, target: tuple[str, bool, float]) -> None:
    assert parse_target(text) == target
    assert parse_target(str(parse_target(text))) == target


def test_targets_of_older_logs_stay_readable() -> None:
    """What an earlier version took, whatever the name; no text stops a fold."""
    assert stored_target("a<b>=0.5") == Target("a<b", True, 0.5)
    assert stored_target("a=b<=1_000") == Target("a=b", False, 1000.0)
    assert stored_target("\n a>=2") == Target("a", True, 2.0)
    for wrong in ("", "nonsense", "a>=", "a>=nan", ">=1"):
        assert stored_target(wrong) is None


@given(st.text(max_size=300))
def test_any_stored_text_is_read_or_none(text: str) -> None:
    stored_target(text)
    remaining(RemainingEvidence(done=1.0, target=text))


@given(st.text(max_size=300))
def test_any_text_is_a_target_or_one_line(text: str) -> None:
    try:
        found: Target | str = parse_target(text)
    except InputError as error:
        found = str(error)
    assert "\n" not in found if isinstance(found, str) else stored_target(text) == found

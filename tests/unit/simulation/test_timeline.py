"""Virtual time: a total order, executor before outside, and None at the deadline."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import CancelRequested
from coadapt.simulation.engine.simulated_executor import EXECUTOR, OUTSIDE, Timeline


def test_timeline_delivers_the_executors_events_before_submissions_of_the_same_instant():
    timeline = Timeline()
    timeline.at(5.0, CancelRequested(job="outside"), OUTSIDE)
    timeline.at(5.0, CancelRequested(job="executor"), EXECUTOR)
    assert [timeline.next(5.0)[1].job for _ in range(2)] == ["executor", "outside"]  # type: ignore[index, union-attr]
    assert timeline.next(5.0) is None
    assert timeline.now() == 5.0


def test_timeline_stops_at_the_deadline_and_goes_on_later():
    timeline = Timeline()
    timeline.at(10.0, CancelRequested(job="a"))
    assert timeline.next(4.0) is None
    assert timeline.now() == 4.0
    assert timeline.next(None) == (10.0, CancelRequested(job="a"))
    assert timeline.next(None) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([EXECUTOR, OUTSIDE])), max_size=30))
def test_timeline_is_sorted_by_time_priority_and_order_of_scheduling(entries: list[tuple[int, int]]) -> None:
    timeline = Timeline()
    for number, (at, priority) in enumerate(entries):
        timeline.at(float(at), CancelRequested(job=str(number)), priority)
    seen = []
    while (found := timeline.next(None)) is not None:
        seen.append(int(found[1].job))  # type: ignore[union-attr]
    assert seen == sorted(range(len(entries)), key=lambda i: (*entries[i], i))

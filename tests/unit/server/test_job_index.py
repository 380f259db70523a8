"""Pages of an index against a list that is searched by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coadapt.server.log_follower import JobIndex

PUTS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from("uv"), st.sampled_from("PRF")), max_size=80)


@given(
    PUTS,
    st.sampled_from([None, "u", "v"]),
    st.sets(st.sampled_from("PRF")),
    st.none() | st.integers(0, 31),
    st.integers(1, 9),
)
def test_page_is_what_a_search_by_hand_finds(
    puts: list[tuple[int, str, str]], user: str | None, phases: set[str], before: int | None, limit: int
) -> None:
    index, jobs = JobIndex(), {}
    for order, owner, phase in puts:
        index.put(order, f"j{order}", owner, phase)
        jobs[order] = (owner, phase)
    match = sorted((o for o, (u, p) in jobs.items() if p in phases and user in (None, u)), reverse=True)
    rest = [order for order in match if before is None or order < before]
    names, total, following = index.page(user=user, phases=phases, before=before, limit=limit)
    assert list(names) == [f"j{order}" for order in rest[:limit]]
    assert total == len(match)
    assert following == (rest[limit - 1] if len(rest) > limit else None)
    assert all(index.count(p) == sum(phase == p for _, phase in jobs.values()) for p in "PRF")

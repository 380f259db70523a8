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
    puts: list[tuple[int, str, str]], user: str | None, states: set[str], before: int | None, limit: int
) -> None:
    index, jobs = JobIndex(), {}
    for order, owner, state in puts:
        index.put(order, f"j{order}", owner, state)
        jobs[order] = (owner, state)
    match = sorted((o for o, (u, p) in jobs.items() if p in states and user in (None, u)), reverse=True)
    rest = [order for order in match if before is None or order < before]
    names, total, following = index.page(user=user, states=states, before=before, limit=limit)
    assert list(names) == [f"j{order}" for order in rest[:limit]]
    assert total == len(match)
    assert following == (rest[limit - 1] if len(rest) > limit else None)
    assert all(index.count(p) == sum(state == p for _, state in jobs.values()) for p in "PRF")

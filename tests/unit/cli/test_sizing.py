from __future__ import annotations

from functools import cache

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from coadapt.cli.sizing import Probe, probe_of, smallest
from coadapt.report import Summary


@cache
def _a_summary() -> Summary:
    numbers = {field.name: 0 for field in msgspec.structs.fields(Summary)}
    return Summary(**numbers)


def _probe(nodes: int, holds: bool) -> Probe:
    return Probe(nodes=nodes, summary=_a_summary(), holds=holds, missed=0.0 if holds else 1.0)


def _answer(tried: dict[int, Probe]) -> int | None:
    return min((nodes for nodes, probe in tried.items() if probe.holds), default=None)


@given(least=st.integers(1, 20), span=st.integers(0, 300), need=st.integers(1, 330))
def test_smallest_is_exact_where_more_nodes_always_help(least: int, span: int, need: int) -> None:
    most = least + span
    tried = smallest(lambda nodes: _probe(nodes, nodes >= need), least, most)
    assert _answer(tried) == (max(least, need) if need <= most else None)
    assert all(least <= nodes <= most for nodes in tried)
    assert len(tried) <= 2 * (most.bit_length() + 2)


@given(good=st.sets(st.integers(1, 60)), least=st.integers(1, 20))
def test_smallest_has_no_better_neighbour_whatever_the_shape(good: set[int], least: int) -> None:
    tried = smallest(lambda nodes: _probe(nodes, nodes in good), least, 60)
    answer = _answer(tried)
    if answer is not None:
        assert not {answer - 1, answer - 2} & {nodes for nodes in good if nodes >= least}


def test_probe_holds_if_every_goal_does() -> None:
    summary = msgspec.structs.replace(_a_summary(), p90_wait_s=90.0, avg_jct_s=200.0)
    assert probe_of(4, summary, {"wait_p90": 100.0, "jct_avg": 200.0}).holds
    missed = probe_of(4, summary, {"wait_p90": 60.0, "jct_avg": 200.0})
    assert not missed.holds
    assert missed.missed == 0.5


def test_probe_with_unfinished_jobs_holds_nothing() -> None:
    summary = msgspec.structs.replace(_a_summary(), p90_wait_s=0.0, num_unfinished=1)
    assert not probe_of(4, summary, {"wait_p90": 100.0}).holds

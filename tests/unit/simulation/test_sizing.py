from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.report import Summary
from coadapt.simulation.sizing import Probe, probe_of, size, smallest
from tests.unit.cli.traces import SMALL


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


def test_size_from_python_answers_as_the_command_does() -> None:
    found = size(SMALL, {"wait_p90": 3600.0}, policy="fifo", node="4")
    assert found.answer is not None
    assert found.answer is next(probe for probe in found.probes if probe.holds)
    assert found.to_dict()["nodes"] == found.answer.nodes
    assert found.to_dict()["tried"][0]["nodes"] == found.probes[0].nodes
    none = size(SMALL, {"jct_avg": 1.0}, policy="fifo", node="4", max_nodes=2)
    assert none.answer is None
    assert none.why_not.startswith(
        "no cluster of up to 2 nodes of 4 GPUs meets average JCT within 1.0s under fifo"
    )


@pytest.mark.parametrize(
    ("goals", "more", "said"),
    [
        ({}, {}, "no goal"),
        ({"wait_p09": 1.0}, {}, "did you mean 'wait_p90'"),
        ({"makespan": 1.0}, {"max_nodes": 0}, "--max-nodes 0: must be at least 1"),
        ({"makespan": 1.0}, {"node": "0:t4"}, "at least 1 GPU"),
        ({"makespan": 1.0}, {"node": "4,2x4"}, "--node takes GPUS"),
    ],
)
def test_size_refuses_what_it_cannot_look_for(
    goals: dict[str, float], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        size(SMALL, goals, **more)

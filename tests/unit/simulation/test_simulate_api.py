"""The Python functions refuse what they cannot use, by name, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from coadapt.errors import InputError
from coadapt.policies import FifoPolicy
from coadapt.simulation.simulate_api import compare, simulate
from tests.unit.cli.traces import SMALL


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trace": None}, "trace must be the path of a file or a Workload, not None"),
        ({"policy": None}, "policy must be a name"),
        ({"policy": FifoPolicy}, "policy must be a name"),
        ({"cluster": 5}, "cluster must be a Cluster or its shorthand"),
        ({"seed": "x"}, "seed must be a whole number, not 'x'"),
        ({"seed": -1}, "seed -1 is invalid"),
        ({"interval_s": "1h"}, "interval_s: '1h' is not a number"),
        ({"policy": "tiresias", "options": {"thresholds": 5}}, "option 'thresholds': 5 is not a list"),
        ({"options": 5}, "options must be a mapping"),
        ({"options": {5: 1}}, "the name of an option must be a text, not 5"),
        ({"bound": "no"}, "bound must be True or False, not 'no'"),
        ({"bound": 1}, "bound must be True or False"),
        ({"keep_events": None}, "keep_events must be True or False"),
        ({"policy": FifoPolicy(), "options": {"backfill": True}}, "given by name"),
    ],
)
def test_simulate_names_the_parameter_it_refuses(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(**{"trace": "nowhere.csv", **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"processes": 0}, "processes 0 is invalid"),
        ({"processes": 1.5}, "processes must be a whole number"),
        ({"seeds": 0}, "seeds 0 is invalid"),
        ({"policies": "fifo"}, "policies must be a list, not 'fifo'"),
        ({"policies": [None]}, "policy must be a name"),
        ({"clusters": "16x4"}, "clusters must be a list"),
        ({"clusters": [5]}, "cluster must be a Cluster"),
        ({"options": {"pollux": {"p": 0}}, "policies": ["fifo"]}, "options are given for 'pollux'"),
        ({"options": {"fifo": 5}, "policies": ["fifo"]}, "options must be a mapping"),
        ({"options": {"fifo": {5: 1}}, "policies": ["fifo"]}, "the name of an option must be a text"),
        ({"bound": "no"}, "bound must be True or False"),
        ({"recorded_check": "yes"}, "recorded_check must be True or False"),
    ],
)
def test_compare_names_the_parameter_it_refuses(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        compare(**{"trace": "nowhere.csv", **given})


def test_results_are_shown_in_one_line() -> None:
    result = simulate(SMALL, "fifo", "2x4")
    assert repr(result) == "<Result fifo on 2x4: 20 jobs, average JCT 2h 5m, makespan 10h 7m>"
    comparison = compare(SMALL, ["fifo", "srtf"], clusters=["2x4"])
    assert repr(comparison) == f"<Comparison of fifo, srtf on {SMALL}>"

from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.model import parse_cluster
from coadapt.simulation.comparison import Comparison, compare_entrants, parse_entrants
from coadapt.simulation.recorded_run import check_recorded
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.workload import load_truths, load_workload
from tests.unit.cli.traces import SMALL


def _compared(policies: str, *clusters: str, **options: object) -> Comparison:
    return compare_entrants(
        SMALL,
        parse_entrants(policies, ()),
        [parse_cluster(text) for text in clusters or ("2x4",)],
        Scenario(),
        **options,  # type: ignore[arg-type]
    )


def test_setting_goes_to_the_policies_that_know_it() -> None:
    fifo, tiresias, gittins = parse_entrants("fifo,tiresias,gittins", ("queues=2", "gittins.queues=1"))
    assert (fifo.texts, tiresias.texts, gittins.texts) == ({}, {"queues": "2"}, {"queues": "1"})


def test_setting_of_nobody_is_refused() -> None:
    with pytest.raises(InputError, match="none of the policies fifo has an option 'p'"):
        parse_entrants("fifo", ("p=0",))


def test_policy_may_enter_twice_with_other_options() -> None:
    plain, other = parse_entrants("fifo,fifo:backfill=false", ())
    assert (plain.name, other.name, other.policy, other.texts) == (
        "fifo",
        "fifo:backfill=false",
        "fifo",
        {"backfill": "false"},
    )


def test_what_has_no_equals_sign_belongs_to_the_option_before_it() -> None:
    (one,) = parse_entrants("coadapt:quotas=ada:2:patience=3", ())
    assert (one.policy, one.texts) == ("coadapt", {"quotas": "ada:2", "patience": "3"})
    assert one.name == "coadapt:quotas=ada:2:patience=3"
    with pytest.raises(InputError, match="'ada' is not NAME=VALUE"):
        parse_entrants("coadapt:ada:quotas=ada:2", ())


def test_a_map_in_the_name_of_an_entrant_reaches_the_policy() -> None:
    compared = _compared("coadapt:quotas=ada:1,fifo")
    assert compared.mean("coadapt:quotas=ada:1").num_unfinished > compared.mean("fifo").num_unfinished == 0


@pytest.mark.parametrize(
    ("policies", "clusters", "options", "said"),
    [
        ("fifo,fifo", ("2x4",), {}, "given twice"),
        ("fifo", ("2x4", "2x4"), {}, "given twice"),
        ("fifo", ("2x4",), {"reference": "srtf"}, "not among the policies"),
        ("", ("2x4",), {}, "at least one policy"),
        ("fifo", ("1x2",), {}, "does not fit"),
    ],
)
def test_impossible_comparisons_are_refused(
    policies: str, clusters: tuple[str, ...], options: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        _compared(policies, *clusters, **options)


def test_every_policy_runs_on_every_cluster_with_every_seed() -> None:
    comparison = _compared("fifo,srtf", "2x4", "3x4", seeds=2, reference="srtf")
    assert comparison.names == ["fifo on 2x4", "srtf on 2x4", "fifo on 3x4", "srtf on 3x4"]
    assert comparison.reference == "srtf on 2x4"
    assert [run["seed"] for run in comparison.runs] == [0, 1] * 4
    assert comparison.ratios["srtf on 2x4"].ratio == 1.0
    assert comparison.mean("fifo on 2x4").avg_jct_s == comparison.runs[0]["avg_jct_s"]


def test_replay_of_the_recorded_run_is_exact_on_its_own_cluster() -> None:
    found = _compared("fifo").recorded_check
    assert found is not None
    assert (found.jobs, found.late, found.wait_error_p90_s, found.jct_error_p90_s) == (20, 0, 0.0, 0.0)


def test_replay_on_a_smaller_cluster_shows_its_error() -> None:
    scenario = Scenario()
    truths = load_truths(scenario)
    workload, _ = load_workload(SMALL, scenario, truths)
    found = check_recorded(workload, parse_cluster("1x8"), scenario, truths)
    assert found is not None
    assert found.late == 0  # the same GPUs on one node
    small = check_recorded(workload, parse_cluster("1x7"), scenario, truths)
    assert small is not None
    assert small.jobs == 19  # the job of 8 GPUs has no place
    assert small.late > 0
    assert check_recorded(workload, parse_cluster("1x7"), scenario, truths) == small

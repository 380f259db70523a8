"""Jobs with measured rates: rounds of whole steps, pairs on the same GPUs, tables that lack something."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from coadapt.errors import InputError, TraceError
from coadapt.model import JobFinished, JobSpec, parse_cluster
from coadapt.plugins import POLICIES
from coadapt.simulation.engine import gpu_sharing
from coadapt.simulation.engine.gpu_sharing import GpuSharing, Partners
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.engine.stepped_training import steps_in_round
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.truth.oracle_curves import TruthCurves
from coadapt.simulation.truth.rate_table import RateTruth, rate_file, read_rates
from coadapt.store import MemoryLog
from tests.builders import a_job

HEADER = "gpu,consolidated,model,gpus,other_model,steps_per_s,other_steps_per_s\n"
TABLE = (
    HEADER + "v100,1,a (batch size 8),1,,1.5,\n"
    "v100,1,a (batch size 8),1,a (batch size 8),1.2,1.2\n"
    "v100,1,b,1,,0.5,\n"
    "v100,1,b,1,a (batch size 8),0.25,1.0\n"
    "v100,0,b,1,,99,\n"
    "k80,1,a (batch size 8),1,,0.0,\n"
)


@pytest.fixture
def table(tmp_path: Path) -> dict[str, RateTruth]:
    (tmp_path / "throughputs.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    path = rate_file(tmp_path)
    assert path is not None
    return read_rates(path)


def ends(
    jobs: list[tuple[float, str, JobSpec]], truths: dict[str, RateTruth], policy: str, **options: Any
) -> dict[str, float]:
    log = MemoryLog()
    round_s = options.pop("round_s", None)
    simulate(
        jobs,
        parse_cluster(options.pop("cluster", "1x1:v100")),
        POLICIES.make(policy, **options),
        log,
        truths=truths,
        curves=TruthCurves(truths) if policy != "fifo" else None,
        setting=Setting(change_cost=constant(0.0), round_s=round_s),
    )
    return {r.event.job: r.at for r in log.read() if isinstance(r.event, JobFinished)}


def test_rates_alone_and_beside_others_are_read(table: dict[str, RateTruth]) -> None:
    a, b = table["a (batch size 8)"], table["b"]
    assert (a.rate("v100", 1), a.rate("v100", 1, "b"), b.rate("v100", 1, "a (batch size 8)")) == (
        1.5,
        1.0,
        0.25,
    )
    assert b.rate("v100", 1) == 0.5, "only rates on one machine count"
    assert a.limits("v100").initial == 8


def test_job_without_rounds_takes_its_steps_over_its_rate(table: dict[str, RateTruth]) -> None:
    jobs = [
        (0.0, "x", table["b"].spec("x", 1, 100.5)),
        (0.0, "y", table["a (batch size 8)"].spec("y", 1, 30.0)),
    ]
    assert ends(jobs, table, "fifo", cluster="1x2:v100") == {
        "x": pytest.approx(201.0),
        "y": pytest.approx(20.0),
    }


def test_round_has_whole_steps() -> None:
    assert steps_in_round(0.5, 5.0, 5.0) == 2.0
    assert steps_in_round(0.01, 5.0, 5.0) == 1.0, "a round has a step at least"
    assert steps_in_round(1.5, 3.5, 5.0) == 3.5, "the last part of a step is trained, too"


def test_next_round_begins_when_the_last_job_is_through(table: dict[str, RateTruth]) -> None:
    """Rounds of 5 s: b does 2 steps in 4 s and waits for a, which does 7 in 4.67 s. The fifth step of b is in round 3."""
    jobs = [
        (0.0, "x", table["b"].spec("x", 1, 5.0)),
        (0.0, "y", table["a (batch size 8)"].spec("y", 1, 100.0)),
    ]
    found = ends(jobs, table, "gavel-fifo", cluster="1x2:v100", round_s=5.0)
    assert found["x"] == pytest.approx(2 * (7 / 1.5) + 1 / 0.5)


def test_pair_shares_a_gpu_at_the_rates_of_the_pair(table: dict[str, RateTruth]) -> None:
    """Two jobs on one GPU: FIFO packs them (0.8 + 0.8 > 1.5), and both go at 1.2 steps/s instead of one after the other."""
    spec = table["a (batch size 8)"].spec
    jobs = [(0.0, "x", spec("x", 1, 1200.0)), (0.0, "y", spec("y", 1, 1200.0))]
    packed = ends(jobs, table, "gavel-fifo-packed", round_s=360.0)
    assert packed == {"x": pytest.approx(1000.0), "y": pytest.approx(1000.0)}
    alone = ends(jobs, table, "gavel-fifo", round_s=360.0)
    assert sorted(alone.values()) == [pytest.approx(800.0), pytest.approx(1600.0)]


def test_job_left_by_its_partner_goes_at_its_own_rate_again(table: dict[str, RateTruth]) -> None:
    spec = table["a (batch size 8)"].spec
    jobs = [(0.0, "x", spec("x", 1, 120.0)), (0.0, "y", spec("y", 1, 270.0))]
    found = ends(jobs, table, "gavel-fifo-packed", recompute_s=0.0)
    # without rounds of the simulator: the policy's rounds end at 360 s, y speeds up as soon as x is gone
    assert found["x"] == pytest.approx(100.0)
    assert found["y"] == pytest.approx(100.0 + 150.0 / 1.5)


def test_without_groups_nobody_is_told_of_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that does not share GPUs pays nothing for it: no call, whatever it does."""
    calls: list[str] = []
    monkeypatch.setattr(Partners, "move", lambda self, job, placement: calls.append(job) or [])
    monkeypatch.setattr(GpuSharing, "slowdown", lambda *args: calls.append("slowdown"))
    jobs = [(float(i), f"j{i}", a_job(1 + i % 2, duration_s=30.0)) for i in range(20)]
    simulate(jobs, parse_cluster("2x2"), POLICIES.make("tiresias"), MemoryLog(keep=False))
    assert calls == []


def test_pair_that_nobody_measured_goes_at_the_published_median() -> None:
    assert GpuSharing().slowdown(a_job(1), "gpu", [a_job(1)]).rate == gpu_sharing.ALONE_SHARE.value
    assert GpuSharing().slowdown(a_job(1), "gpu", []).rate == 1.0
    assert gpu_sharing.ALONE_SHARE.low < gpu_sharing.ALONE_SHARE.value < gpu_sharing.ALONE_SHARE.upper


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t["b"].limits("a100"), "'b' has no rates for GPU type 'a100'; it has: v100"),
        (lambda t: t["b"].spec("x", 3), "'b' has no rates for 3 GPUs; it has 1"),
        (lambda t: t["b"].rate("v100", 2), "'b' has no rate for 2 GPUs of type 'v100'; it has 1 GPUs"),
    ],
)
def test_rate_that_is_not_in_the_table_is_named(table: dict[str, RateTruth], ask: Any, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        ask(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "no rates of jobs alone"),
        ("gpu,model\n", "the column 'consolidated' is missing"),
        (HEADER + "v100,1,b,1,,fast,\n", ":2: column 'steps_per_s': 'fast' is not a number from 0 to 1e9"),
        (HEADER + "v100,1,b,,,1,\n", ":2: column 'gpus': '' is not a number"),
    ],
)
def test_broken_table_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "throughputs.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        read_rates(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)

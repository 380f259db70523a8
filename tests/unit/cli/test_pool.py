from __future__ import annotations

import json
from pathlib import Path

import pytest

import coadapt
from coadapt.cli.main import run
from coadapt.errors import InputError
from coadapt.model import (
    Configuration,
    ControllerStarted,
    Measurement,
    NodeJoined,
    PoolLoaded,
    decode,
    encode,
)
from coadapt.prediction.remaining.past_jobs import PastJob, Pool
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable, observe
from coadapt.store.pool_file import read_pool, write_pool

Printed = pytest.CaptureFixture[str]
TRACE = (
    "name,time,application,num_replicas,batch_size\ncifar10-0,0,cifar10,2,256\ncifar10-1,60,cifar10,2,256\n"
)


def a_past_job(name: str, **fields: object) -> PastJob:
    config = Configuration(nodes=1, replicas=1, atomic_batch=64)
    table = observe(EMPTY_TABLE, Measurement(config=config, step_s=0.1, sync_s=0.0))
    return PastJob(name=name, table=table, **fields)  # type: ignore[arg-type]


def a_file(folder: Path, *jobs: PastJob) -> str:
    write_pool(folder / "past.json", Pool(jobs=jobs))
    return str(folder / "past.json")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


def test_pool_shows_a_row_for_each_signature_the_largest_first(tmp_path: Path, capsys: Printed) -> None:
    file = a_file(
        tmp_path,
        a_past_job("once", total_work=12.5),
        a_past_job("bert-1", total_work=1e6, change_cost_s=20.0),
        a_past_job("bert-2", total_work=3e6, change_cost_s=40.0),
        a_past_job("bert-3"),
    )
    assert run(["pool", file]) == 0
    out, err = capsys.readouterr()
    assert "parameters (11): bert (1), once (1); what is predicted from these has wide intervals" in err
    lines = [line.split() for line in out.splitlines()]
    assert lines == [
        ["SIGNATURE", "JOBS", "POINTS", "WORK", "CHANGE", "COST"],
        ["bert", "3", "3", "2e+06", "30s"],
        ["once", "1", "1", "12.5", "-"],
    ]
    assert run(["pool", file, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == {"signature": "bert", "jobs": 3, "points": 3, "work": 2e6, "change_cost_s": 30.0}
    assert second["change_cost_s"] is None


def test_pool_with_points_enough_says_nothing_of_too_few(tmp_path: Path, capsys: Printed) -> None:
    table = EMPTY_TABLE
    for batch in range(1, 12):
        config = Configuration(nodes=1, replicas=1, atomic_batch=batch)
        table = observe(table, Measurement(config=config, step_s=0.1, sync_s=0.0))
    jobs = PastJob(name="bert-1", table=table), PastJob(name="rigid-1")
    assert run(["pool", a_file(tmp_path, *jobs)]) == 0
    assert capsys.readouterr().err == ""
    less = PastJob(name="bert-1", table=StepTimeTable(rows=table.rows[1:]))
    assert run(["pool", a_file(tmp_path, *[less] * 3)]) == 0
    assert "bert (10)" in capsys.readouterr().err


def test_pool_names_five_signatures_with_too_few_points_and_counts_the_rest(
    tmp_path: Path, capsys: Printed
) -> None:
    assert run(["pool", a_file(tmp_path, *(a_past_job(f"{letter}-1") for letter in "gfedcba"))]) == 0
    err = capsys.readouterr().err
    assert "a (1), b (1), c (1), d (1), e (1) and 2 more" in err
    assert err.count("\n") == 1


def test_empty_pool_is_one_line(tmp_path: Path, capsys: Printed) -> None:
    assert run(["pool", a_file(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("contains no past jobs.\n")
    assert run(["pool", a_file(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("command", ["pool", "simulate", "compare", "size"])
@pytest.mark.parametrize("kind", ["missing", "damaged", "newer", "directory"])
def test_pool_that_cannot_be_read_is_one_line_and_nothing_is_written(
    command: str, kind: str, trace: str, tmp_path: Path, capsys: Printed
) -> None:
    path = tmp_path / "past.json"
    if kind == "damaged":
        path.write_text('{"version": 1, "pool": {"jobs": [{}')
    elif kind == "newer":
        path.write_text('{"version": 99}')
    elif kind == "directory":
        path.mkdir()
    before = sorted(each.name for each in tmp_path.iterdir())
    arguments = {
        "pool": [str(path)],
        "simulate": [trace, "--pool", str(path), "-o", str(tmp_path / "out")],
        "compare": [trace, "--pool", str(path), "-o", str(tmp_path / "out")],
        "size": [trace, "--wait-p90", "1h", "--pool", str(path)],
    }
    assert run([command, *arguments[command]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"pool {path}" in err
    assert err.count("\n") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == before


def test_simulate_saves_what_it_learned_and_knows_it_the_next_time(
    trace: str, tmp_path: Path, capsys: Printed
) -> None:
    file = str(tmp_path / "past.json")
    arguments = ["simulate", trace, "--cluster", "2x4", "--json"]
    assert run([*arguments, "--save-pool", file]) == 0
    learned = read_pool(file)
    assert [job.name for job in learned.jobs] == ["cifar10-0", "cifar10-1"]
    assert all(job.table.rows and job.total_work for job in learned.jobs)
    capsys.readouterr()
    assert run([*arguments, "--pool", file, "--save-pool", file]) == 0
    both = read_pool(file)
    assert [job.name for job in both.jobs] == ["cifar10-0", "cifar10-1"] * 2
    # the earlier run was before this one, whatever its clock said
    assert max(job.finished_at for job in both.jobs[:2]) <= 0 < min(job.finished_at for job in both.jobs[2:])


def test_pool_changes_what_a_policy_that_predicts_does(trace: str, tmp_path: Path) -> None:
    plain = coadapt.simulate(trace, "coadapt", "2x4")
    assert plain.pool is not None
    write_pool(tmp_path / "past.json", plain.pool)
    taught = coadapt.simulate(trace, "coadapt", "2x4", pool=tmp_path / "past.json")
    again = coadapt.simulate(trace, "coadapt", "2x4", pool=tmp_path / "past.json")
    assert taught.jobs == again.jobs
    assert taught.summary.avg_jct_s != plain.summary.avg_jct_s


def test_pool_is_a_fact_right_after_the_start_and_reads_back(trace: str, tmp_path: Path) -> None:
    file = a_file(tmp_path, a_past_job("late", finished_at=1e6), a_past_job("early", finished_at=10.0))
    records = coadapt.simulate(trace, "fifo", "2x4", pool=file).records
    assert records is not None
    assert [type(record.event) for record in records[:3]] == [ControllerStarted, PoolLoaded, NodeJoined]
    assert all(decode(encode(record)) == record for record in records[:3])
    loaded = records[1].event
    assert isinstance(loaded, PoolLoaded)
    assert [job.get("finished_at", 0.0) for job in loaded.pool["jobs"]] == [0.0, 10.0 - 1e6]
    plain = coadapt.simulate(trace, "fifo", "2x4").records
    assert plain is not None
    assert not any(isinstance(record.event, PoolLoaded) for record in plain)


def test_file_that_exists_is_replaced_only_by_force(trace: str, tmp_path: Path, capsys: Printed) -> None:
    file = a_file(tmp_path, a_past_job("precious"))
    arguments = ["simulate", trace, "--cluster", "2x4", "--save-pool", file]
    assert run([*arguments, "-o", str(tmp_path / "out")]) == 2
    assert "exists; choose another name, or replace it by --force" in capsys.readouterr().err
    assert [job.name for job in read_pool(file).jobs] == ["precious"]
    assert not (tmp_path / "out").exists()
    assert run([*arguments, "--force"]) == 0
    assert [job.name for job in read_pool(file).jobs] == ["cifar10-0", "cifar10-1"]


@pytest.mark.parametrize("name", ["no/such/place.json", ".", "trace.csv/past.json"])
def test_file_that_cannot_be_written_is_said_before_anything_runs(
    name: str, trace: str, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr("coadapt.simulation.simulate_api.run_case", never)
    assert run(["simulate", trace, "--cluster", "2x4", "--save-pool", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "internal error" not in err
    assert [each.name for each in tmp_path.iterdir()] == ["trace.csv"]


def test_compare_knows_the_pool(trace: str, tmp_path: Path) -> None:
    first = coadapt.simulate(trace, "coadapt", "2x4")
    assert first.pool is not None
    write_pool(tmp_path / "past.json", first.pool)
    taught = coadapt.simulate(trace, "coadapt", "2x4", pool=tmp_path / "past.json").summary.avg_jct_s
    compared = coadapt.compare(trace, ["coadapt", "fifo"], clusters=["2x4"], pool=tmp_path / "past.json")
    assert compared.runs[0]["avg_jct_s"] == taught


def test_python_refuses_what_is_no_pool(trace: str) -> None:
    with pytest.raises(InputError, match="pool: 5 is not"):
        coadapt.simulate(trace, "fifo", "2x4", pool=5)

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from coadapt.cli.main import run
from coadapt.errors import InputError
from coadapt.explain import RunFacts, import_history
from coadapt.model import Batch
from coadapt.plugins import make_policy
from coadapt.prediction.remaining.past_jobs import prior_for
from coadapt.store.open import open_store
from coadapt.store.pool_file import read_pool
from tests.builders import a_cluster, a_job, a_trained_job, simulated

LOG = "Namespace(batch_size=64, num_gpus=4, lr=0.1)\n" + "".join(
    f"step {n}/100 loss=0.5 time 0.25s\n" for n in range(0, 101, 5)
)
SAMPLES = Path(__file__).parents[1] / "prediction" / "log_samples"


def a_log(folder: Path, name: str = "bert-1.log", text: str = LOG) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_log_becomes_a_past_job_with_its_step_time_and_work(tmp_path: Path) -> None:
    pool = tmp_path / "past.json"
    found = import_history([a_log(tmp_path)], pool=pool, facts=RunFacts(gpu_type="a100"))
    assert (found.added, found.known, found.left_out) == (1, 0, ())
    (job,) = read_pool(pool).jobs
    assert (job.name, job.batch, job.total_work) == ("bert-1", 64, 6400)
    (row,) = job.table.rows
    assert (row.gpu_type, row.replicas, row.atomic_batch) == ("a100", 4, 16)
    assert row.step_s == pytest.approx(0.25)
    prior = prior_for(
        read_pool(pool), a_job(name="bert-2", batch=Batch(initial=64, max=64, per_gpu_min=1, per_gpu_max=64))
    )
    assert prior.matches


def test_a_run_is_imported_once(tmp_path: Path) -> None:
    log, pool = a_log(tmp_path), tmp_path / "past.json"
    assert import_history([log], pool=pool).added == 1
    again = import_history([log, tmp_path], pool=pool)
    assert (again.added, again.known, again.jobs) == (0, 1, 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello\n", "no recognised progress"),
        ("step 1/10 loss 2\nstep 10/10 loss 1\n", "no times"),
        (LOG[: len(LOG) // 2], "not ended"),
        ("", "no recognised progress"),
    ],
)
def test_what_teaches_nothing_is_left_out_with_its_reason(tmp_path: Path, text: str, why: str) -> None:
    found = import_history([a_log(tmp_path, text=text)], pool=tmp_path / "past.json")
    assert found.added == 0
    assert why in found.left_out[0][1]
    assert not (tmp_path / "past.json").exists()


def test_tables_of_wandb_and_mlflow(tmp_path: Path) -> None:
    wandb = a_log(
        tmp_path,
        "wandb.csv",
        '"Name","State","Runtime","batch_size","global_step","num_gpus","gpu_type"\n'
        '"resnet-3","finished","1000","256","2000","8","NVIDIA A100-SXM4-80GB"\n'
        '"resnet-4","crashed","10","256","20","8","NVIDIA A100-SXM4-80GB"\n',
    )
    mlflow = a_log(
        tmp_path,
        "mlflow.csv",
        "run_id,status,start_time,end_time,params.batch_size,params.epochs,tags.mlflow.runName\n"
        "a1,FINISHED,2024-01-01 10:00:00+00:00,2024-01-01 11:00:00+00:00,32,3,gpt\n",
    )
    pool = tmp_path / "past.json"
    found = import_history([wandb, mlflow], pool=pool)
    assert found.added == 2
    assert found.left_out[0][1] == "the run is crashed"
    jobs = {job.name: job for job in read_pool(pool).jobs}
    (row,) = jobs["resnet-3"].table.rows
    assert (row.gpu_type, row.replicas, row.step_s) == ("a100", 8, 0.5)
    assert jobs["resnet-3"].total_work == 512000
    assert jobs["gpt"].batch == 32


def test_event_files_are_named_by_their_folder(tmp_path: Path) -> None:
    (tmp_path / "runs" / "vit-7").mkdir(parents=True)
    data = (SAMPLES / "tensorboard.tfevents").read_bytes()
    (tmp_path / "runs" / "vit-7" / "events.out.tfevents.1").write_bytes(data)
    import_history([tmp_path / "runs"], pool=tmp_path / "past.json", facts=RunFacts(batch=16, gpus=2))
    (job,) = read_pool(tmp_path / "past.json").jobs
    assert (job.name, job.total_work) == ("vit-7", 190 * 16)
    assert job.table.rows[0].step_s == pytest.approx(0.5)


def test_jobs_that_ended_in_our_own_store_are_imported(tmp_path: Path) -> None:
    jobs = [(10.0 * i, f"j{i}", a_trained_job(1, at_most=4)) for i in range(3)]
    records, ended = simulated(jobs, a_cluster("1x4"), make_policy("fifo"), interval_s=30.0)
    log = open_store(tmp_path / "store.sqlite").log()
    log.append(records)
    log.close()
    pool = tmp_path / "past.json"
    assert import_history([tmp_path / "store.sqlite"], pool=pool).added == 3
    assert sorted(read_pool(pool).jobs, key=str) == sorted(ended.state.pool.jobs, key=str)
    assert import_history([tmp_path / "store.sqlite"], pool=pool).added == 0


def test_a_foreign_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    found = import_history([path], pool=tmp_path / "past.json")
    assert "not a store of coadapt" in found.left_out[0][1]
    assert path.read_bytes() == before


def test_the_command_says_what_it_did_and_refuses_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = str(tmp_path / "past.json")
    assert run(["history", "import", str(a_log(tmp_path)), "--pool", pool, "--gpus", "a100:4"]) == 0
    assert capsys.readouterr().out == f"1 run added to {pool}; it has 1 past job.\n"
    assert run(["history", "show", pool, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["signature"] == "bert"
    assert run(["history", "import", str(tmp_path / "none.log"), "--pool", pool]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert run(["history", "import", str(tmp_path), "--pool", pool, "--gpus", "8"]) == 2
    assert "is not TYPE:NUMBER" in capsys.readouterr().err


def test_a_damaged_pool_is_not_overwritten(tmp_path: Path) -> None:
    pool = tmp_path / "past.json"
    pool.write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        import_history([a_log(tmp_path)], pool=pool)
    assert pool.read_text() == "{}"

from __future__ import annotations

from pathlib import Path

from coadapt.executors.gang.replica_seats import seats
from coadapt.executors.job_source import SpecJobSource
from coadapt.executors.node.environment import cleaned, interpreter_of, of_job, of_seat
from coadapt.executors.node.node_files import NodeFiles
from coadapt.model import Batch, JobSpec, Placement, Resources, Role, Slot
from coadapt.wire.node_messages import Launch

SPREAD = Placement(
    slots=(
        Slot(node="n0", replicas=2, gpu_type="t4"),
        Slot(node="n0", replicas=1, gpu_type="t4", role="server"),
        Slot(node="n1", replicas=1, gpu_type="t4"),
    )
)


def test_seats_are_ranked_by_role_and_by_node() -> None:
    found = [
        (s.role, s.rank, s.replicas, s.node, s.node_rank, s.nodes, s.local_rank, s.local_replicas)
        for s in seats(SPREAD)
    ]
    assert found == [
        ("worker", 0, 3, "n0", 0, 2, 0, 2),
        ("worker", 1, 3, "n0", 0, 2, 1, 2),
        ("worker", 2, 3, "n1", 1, 2, 0, 1),
        ("server", 0, 1, "n0", 0, 1, 0, 1),
    ]


def test_secrets_of_whoever_started_the_keeper_are_not_passed_on() -> None:
    kept = {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "PYTHONPATH": "x",
        "LD_LIBRARY_PATH": "y",
        "VIRTUAL_ENV": "z",
    }
    secret = {
        "COADAPT_TOKEN": "t",
        "COADAPT_JOB_TOKEN": "t",
        "AWS_SECRET_ACCESS_KEY": "s",
        "GITHUB_TOKEN": "g",
    }
    assert cleaned({**kept, **secret, "COADAPT_HOME": "h", "CUDA_VISIBLE_DEVICES": "0"}) == kept


def test_job_is_told_what_its_agent_reads(tmp_path: Path) -> None:
    (tmp_path / "paces").mkdir()
    (tmp_path / "paces" / "resnet18.t4.json").write_text("{}")
    spec = JobSpec(
        name="a",
        command=("python", "t.py"),
        envs={"MINE": "1", "COADAPT_JOB": "forged", "RANK": "9"},
        code="abc",
        profile="resnet18",
        roles=(Role(demand=Resources(gpus=2)),),
        batch=Batch(initial=64, max=512, per_gpu_min=1, per_gpu_max=64, mode="fixed"),
        epochs=3.0,
    )
    (tmp_path / "code" / "abc").mkdir(parents=True)
    launch = SpecJobSource(lambda job: spec, lambda job: (f"http://x/{job}", "secret")).launch("a/b-1")
    files = NodeFiles(tmp_path / "keeper", tmp_path)
    assert (launch.job, launch.code, launch.gpus) == ("a/b-1", "abc", {"worker": 2})
    assert str(tmp_path) not in repr(launch)  # paths are the node's
    assert files.code_directory(launch.code) == str(tmp_path / "code" / "abc")
    assert (launch.total_batch, launch.epochs) == (64, 3.0)
    common = of_job(launch, "token", "a/b-1", 4, checkpoints=str(files.checkpoint_directory("a/b-1")))
    seat = seats(Placement(slots=(Slot(node="n0", replicas=1, gpu_type="t4"),)))[0]
    envs = {
        **common,
        **of_seat(
            seat,
            launch,
            address="127.0.0.1",
            port=4711,
            cores=None,
            virtual=True,
            pace=files.pace(launch.profile, "t4"),
        ),
    }
    expected = {
        "MINE": "1",
        "COADAPT_JOB": "a/b-1",
        "COADAPT_ATTEMPT": "4",
        "COADAPT_CHECKPOINTS": str(tmp_path / "checkpoints" / "a%2Fb-1"),
        "COADAPT_BATCH": '{"initial":64,"max":512,"per_gpu_min":1,"per_gpu_max":64,"mode":"fixed"}',
        "COADAPT_BATCH_RULE": "fixed",
        "COADAPT_URL": "http://x/a/b-1",
        "COADAPT_JOB_TOKEN": "secret",
        "COADAPT_GPU_TYPE": "t4",
        "COADAPT_PACE": str(tmp_path / "paces" / "resnet18.t4.json"),
        "RANK": "0",
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "OMP_NUM_THREADS": "1",
    }
    assert {name: envs.get(name) for name in expected} == expected


def test_real_node_has_no_pace_and_a_pinned_replica_as_many_threads_as_cores() -> None:
    launch = Launch(command=("x",))
    seat = seats(Placement(slots=(Slot(node="local", replicas=1, gpu_type="cpu"),)))[0]
    envs = of_seat(seat, launch, address="a", port=1, cores=2, virtual=False, pace="file")
    assert "COADAPT_PACE" not in envs
    assert envs["OMP_NUM_THREADS"] == "2"
    own = Launch(command=("x",), envs={"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in of_seat(seat, own, address="a", port=1, cores=2, virtual=False)


def test_script_with_our_agent_is_known_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text("import coadapt.torch as coadapt\n")
    (tmp_path / "other.py").write_text("import torch\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("from coadapt.torch import init\n")
    envs = {"PATH": str(tmp_path)}
    (tmp_path / "python3").touch(mode=0o755)

    def found(*command: str, **more: str) -> str | None:
        return interpreter_of(Launch(command=command, envs=more), envs, str(tmp_path))

    python = str(tmp_path / "python3")
    assert found("python3", "ours.py", "--lr", "1") == python
    assert found("python3", "-u", "-X", "dev", "ours.py") == python
    assert found("/usr/bin/python3.11", "ours.py") == "/usr/bin/python3.11"
    assert found("python3", "-m", "pack") == python
    assert found("python3", "-c", "import coadapt") == python
    assert found("python3", "other.py") is None
    assert found("python3", "missing.py") is None
    assert found("python3") is None
    assert found("sh", "ours.py") is None
    assert found("torchrun", "ours.py") is None
    assert found("python3", "other.py", COADAPT_IN_PLACE="1") == python
    assert found("python3", "ours.py", COADAPT_IN_PLACE="0") is None

from __future__ import annotations

from pathlib import Path

from coadapt.cluster.environment import cleaned, of_job, of_seat, seats
from coadapt.cluster.launches import launch_of
from coadapt.cluster.protocol import Launch
from coadapt.model import Batch, JobSpec, Placement, Resources, Role, Slot

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
    launch = launch_of("a/b-1", spec, home=tmp_path, agent_of=lambda job: (f"http://x/{job}", "secret"))
    assert (launch.workdir, launch.gpus) == (str(tmp_path / "code" / "abc"), {"worker": 2})
    assert (launch.total_batch, launch.epochs) == (64, 3.0)
    common = of_job(launch, "token", "a/b-1", 4)
    seat = seats(Placement(slots=(Slot(node="n0", replicas=1, gpu_type="t4"),)))[0]
    envs = {**common, **of_seat(seat, launch, port=4711, cores=None, virtual=True)}
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
        "MASTER_PORT": "4711",
        "OMP_NUM_THREADS": "1",
    }
    assert {name: envs.get(name) for name in expected} == expected


def test_real_node_has_no_pace_and_a_pinned_replica_as_many_threads_as_cores() -> None:
    launch = Launch(command=("x",), paces={"cpu": "file"})
    seat = seats(Placement(slots=(Slot(node="local", replicas=1, gpu_type="cpu"),)))[0]
    envs = of_seat(seat, launch, port=1, cores=2, virtual=False)
    assert "COADAPT_PACE" not in envs
    assert envs["OMP_NUM_THREADS"] == "2"
    own = Launch(command=("x",), envs={"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in of_seat(seat, own, port=1, cores=2, virtual=False)

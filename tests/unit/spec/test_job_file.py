from __future__ import annotations

from typing import Any

import pytest

from coadapt.errors import InputError
from coadapt.model import Batch, Resources
from coadapt.spec.job_file import job_spec


def test_whole_specification() -> None:
    spec = job_spec(
        {
            "name": "cifar10",
            "run": "python train.py --lr 0.1",
            "setup": "pip install -r requirements.txt && true",
            "resources": {"accelerators": "t4:1..8", "cpus": 2, "memory": "4GiB"},
            "batch": {"initial": 128, "max": 4096, "per_gpu": "32..1024"},
            "epochs": 30,
            "data_size": 50000,
            "target": "val_acc>=0.93",
            "priority": -3,
            "deadline": "6h",
            "time_limit": "1d",
            "after": ["first-1"],
            "retries": 2,
            "team": "vision",
            "envs": {"SEED": 1},
            "metrics": {"val_acc": r"accuracy: ([\d.]+)"},
        }
    )
    assert spec.command == ("python", "train.py", "--lr", "0.1")
    assert spec.setup == ("/bin/sh", "-c", "pip install -r requirements.txt && true")
    assert (spec.worker.min, spec.worker.max, spec.gpu_types) == (1, 8, ("t4",))
    assert spec.worker.demand == Resources(gpus=1, cpus=2.0, memory_bytes=4 * 2.0**30)
    assert spec.batch == Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024, samples_alone=True)
    assert (spec.deadline_s, spec.time_limit_s) == (6 * 3600.0, 86400.0)
    assert spec.envs == {"SEED": "1"}
    assert spec.preemptible


def test_plain_script_is_rigid_and_not_stopped() -> None:
    spec = job_spec({"run": ["python", "train me.py"]})
    assert spec.command == ("python", "train me.py")
    assert spec.name == "train-me"  # as a job may be called
    assert (spec.worker.min, spec.worker.max, spec.preemptible) == (1, 1, False)


def test_plain_script_that_may_be_stopped_says_so() -> None:
    assert job_spec({"run": "x", "preemptible": True}).preemptible


def test_type_alone_is_one_of_it() -> None:
    spec = job_spec({"run": "x", "resources": {"accelerators": "a100"}})
    assert (spec.worker.min, spec.worker.max, spec.gpu_types) == (1, 1, ("a100",))


def test_replicas_of_two_gpus() -> None:
    spec = job_spec({"run": "x", "resources": {"accelerators": "4..8"}, "gpus_per_replica": 2})
    assert (spec.worker.min, spec.worker.max, spec.gpus_per_replica) == (2, 4, 2)


def test_nodes_are_counted_with_what_each_has() -> None:
    spec = job_spec({"run": "x", "resources": {"accelerators": "t4:4"}, "num_nodes": 2})
    assert (spec.worker.min, spec.worker.max) == (8, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"runn": "x"}, "did you mean 'run'"),
        ({"run": 7}, "must be a command"),
        ({"run": "python 'x"}, "is not a command"),
        ({"run": "x\0y"}, "NUL"),
        ({"run": "x", "resources": {"gpu": 1}}, r"unknown key 'resources.gpu'"),
        ({"run": "x", "resources": "t4"}, "must be a mapping"),
        ({"run": "x", "resources": {"accelerators": "t4:8..1"}}, "is not a range"),
        ({"run": "x", "resources": {"accelerators": "t4:1..2,a100:1..4"}}, "the same range"),
        ({"run": "x", "resources": {"accelerators": "5..8"}, "gpus_per_replica": 2}, "cannot be divided"),
        ({"run": "x", "batch": {"max": 8}}, "requires 'initial'"),
        ({"run": "x", "batch": {"initial": 8, "max": 4}}, "less than"),
        ({"run": "x", "batch": {"initial": 8, "mode": "wild"}}, "is not valid"),
        ({"run": "x", "batch": {"initial": 1.5}}, "whole number"),
        ({"run": "x", "batch": {"initial": 4, "per_gpu": "8..16"}}, "exceed batch.max"),
        ({"run": "x", "epochs": 1, "passes": 1}, "exclude each other"),
        ({"run": "x", "epochs": 0}, "above 0"),
        ({"run": "x", "epochs": float("nan")}, "a number"),
        ({"run": "x", "epochs": True}, "a number"),
        ({"run": "x", "priority": 21}, "from -20 to 20"),
        ({"run": "x", "preemptible": "yes"}, "true or false"),
        ({"run": "x", "envs": {"A B": 1}}, "name of a variable"),
        ({"run": "x", "envs": {"A": "\0"}}, "must be a text"),
        ({"run": "x", "envs": []}, "a mapping"),
        ({"run": "x", "metrics": {"a": "("}}, "pattern"),
        ({"run": "x", "metrics": {"a": "b"}}, "one group"),
        ({"run": "x", "target": "very good"}, "target"),
        ({"run": "x", "deadline": "soon"}, "deadline"),
        ({"run": "x", "time_limit": "1 fortnight"}, "unit"),
        ({"run": "x", "after": [1]}, "list of names"),
        ({"run": "x", "num_nodes": 0}, "num_nodes"),
        ({"run": "x", "roles": {"worker": {}, "server": {}}}, "'roles' is not supported"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job_spec(given)

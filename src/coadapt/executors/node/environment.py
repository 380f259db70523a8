"""The environment of replicas, and whether their script uses our agent.

Replicas get the variables of the keeper that a program needs to run, those that the user gave, and their place among
the other replicas. The keeper's environment may hold secrets of the user who started it, so only known names are
passed on.

A job can be resized in place if it is a Python script with our agent. Starting a store for a script that does not use
it would waste resources, so the text of the script is searched for our name. A script that uses the agent through
other modules sets ``COADAPT_IN_PLACE=1`` in its environment, one that must not be resized in place ``=0``.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from coadapt.executors.gang.replica_seats import Seat
from coadapt.wire.agent import Variable
from coadapt.wire.node_messages import Launch

#: Names passed on from the keeper's environment.
_KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_*"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHON*", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("CUDA_HOME", "CUDA_PATH", "NVIDIA_*", "NCCL_*", "GLOO_*", "OMP_*", "MKL_*", "OPENBLAS_*"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "MALLOC_*"),
)


def cleaned(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables of the keeper's environment that a replica may see."""
    return {name: value for name, value in environment.items() if _kept(name)}


def of_job(launch: Launch, token: str, job: str, attempt: int, *, checkpoints: str = "") -> dict[str, str]:
    """Returns the environment that all processes of an attempt share.

    Args:
        launch: what the job runs, with the user's variables.
        token: marks all processes of the attempt.
        job: id of the job.
        attempt: number of the attempt.
        checkpoints: directory for checkpoints; empty: none.
    """
    envs = {
        **cleaned(),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        **launch.envs,
        Variable.TOKEN: token,
        Variable.JOB: job,
        Variable.ATTEMPT: str(attempt),
    }
    ours = {
        Variable.CHECKPOINTS: checkpoints,
        Variable.BATCH: launch.batch,
        Variable.BATCH_RULE: "fixed" if launch.fixed_batch else "",
        Variable.URL: launch.url,
        Variable.JOB_TOKEN: launch.token,
    }
    return {**envs, **{name: value for name, value in ours.items() if value}}


def marks(envs: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of an environment that are ours, which no other may replace."""
    return {name: value for name, value in envs.items() if name.startswith("COADAPT_")}


def of_seat(
    seat: Seat,
    launch: Launch,
    *,
    address: str,
    port: int,
    cores: int | None,
    virtual: bool,
    pace: str = "",
) -> dict[str, str]:
    """Returns the environment of one replica beyond ``of_job``: its place among the others, in torchrun's variables.

    Args:
        seat: rank, node and counts of the replica.
        launch: what the job runs; its own OMP_NUM_THREADS takes precedence.
        address: host where replicas meet.
        port: port where replicas meet.
        cores: number of cores it is pinned to; None: not pinned.
        virtual: whether its GPU is virtual.
        pace: file with the step times of its virtual GPU; empty: none.
    """
    envs = {
        Variable.ROLE: seat.role,
        Variable.GPU_TYPE: seat.gpu_type,
        "NODE": seat.node,
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(seat.replicas),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(seat.local_replicas),
        "NODE_RANK": str(seat.node_rank),
        "GROUP_RANK": str(seat.node_rank),
        "GROUP_WORLD_SIZE": str(seat.nodes),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
    if virtual and pace:
        envs[Variable.PACE] = pace
    if (virtual or cores) and "OMP_NUM_THREADS" not in launch.envs:
        # with more threads, replicas that share cores slow each other down
        envs["OMP_NUM_THREADS"] = str(cores or 1)
    return envs


def _kept(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _KEPT)


_PYTHON = re.compile(r"python[\d.]*")
_OURS = re.compile(r"\bcoadapt\b")
_MOST_BYTES = 1 << 20
#: Options of Python that have a value of their own.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def interpreter_of(launch: Launch, envs: Mapping[str, str], workdir: str = "") -> str | None:
    """Returns the Python interpreter of a script with our agent; None: the job is resized by restart."""
    asked = launch.envs.get(Variable.IN_PLACE, "")
    if asked == "0" or not launch.command:
        return None
    program, *arguments = launch.command
    if not _PYTHON.fullmatch(Path(program).name):
        return None
    if asked != "1" and not _OURS.search(_script(arguments, Path(workdir or "."))):
        return None
    path = Path(workdir or ".") / program if "/" in program else None
    return str(path) if path is not None else shutil.which(program, path=envs.get("PATH"))


def _script(arguments: list[str], workdir: Path) -> str:
    """The text of the script that the arguments name; empty if it cannot be read."""
    rest = list(arguments)
    while rest:
        first = rest.pop(0)
        if first == "-c":
            return rest[0] if rest else ""
        if first == "-m":
            module = workdir / (rest[0] if rest else "").replace(".", "/")
            return _text(module.with_suffix(".py")) or _text(module / "__main__.py")
        if first in _WITH_VALUE:
            del rest[:1]
        elif not first.startswith("-"):
            return _text(workdir / first)
    return ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""

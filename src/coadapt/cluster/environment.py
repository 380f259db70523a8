"""The environment of replicas: what they need of the keeper's, what the user gave, and where they stand among the others.

The keeper's own environment may hold secrets of whoever started it, so only names that a program needs to run are passed on.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from typing import NamedTuple

from coadapt.cluster.processes import TOKEN
from coadapt.cluster.protocol import Launch
from coadapt.model import Placement
from coadapt.model.job import WORKER

#: Names passed on from the keeper's environment.
_KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_*"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHON*", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("CUDA_HOME", "CUDA_PATH", "NVIDIA_*", "NCCL_*", "GLOO_*", "OMP_*", "MKL_*", "OPENBLAS_*"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "MALLOC_*"),
)


class Seat(NamedTuple):
    """One replica's place: its rank within its role, and the same within its node."""

    role: str
    rank: int
    replicas: int
    node: str
    node_rank: int
    nodes: int
    local_rank: int
    local_replicas: int
    gpu_type: str
    share: float


def seats(placement: Placement) -> list[Seat]:
    """All replicas, workers first, in order of rank."""
    found: list[Seat] = []
    roles = sorted({slot.role for slot in placement.slots}, key=lambda role: (role != WORKER, role))
    for role in roles:
        slots = [slot for slot in placement.slots if slot.role == role]
        nodes = list(dict.fromkeys(slot.node for slot in slots))
        on_node = {name: sum(slot.replicas for slot in slots if slot.node == name) for name in nodes}
        seen = dict.fromkeys(nodes, 0)
        for slot in slots:
            for _ in range(slot.replicas):
                found.append(
                    Seat(
                        role=role,
                        rank=sum(seen.values()),
                        replicas=placement.count(role),
                        node=slot.node,
                        node_rank=nodes.index(slot.node),
                        nodes=len(nodes),
                        local_rank=seen[slot.node],
                        local_replicas=on_node[slot.node],
                        gpu_type=slot.gpu_type,
                        share=slot.share,
                    )
                )
                seen[slot.node] += 1
    return found


def cleaned(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What of the keeper's environment a replica may see."""
    return {name: value for name, value in environment.items() if _kept(name)}


def of_job(launch: Launch, token: str, job: str, attempt: int) -> dict[str, str]:
    """What all processes of an attempt have: of the keeper's, the user's, the job's."""
    envs = {
        **cleaned(),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        **launch.envs,
        TOKEN: token,
        "COADAPT_JOB": job,
        "COADAPT_ATTEMPT": str(attempt),
    }
    ours = {
        "COADAPT_CHECKPOINTS": launch.checkpoints,
        "COADAPT_BATCH": launch.batch,
        "COADAPT_BATCH_RULE": "fixed" if launch.fixed_batch else "",
        "COADAPT_URL": launch.url,
        "COADAPT_JOB_TOKEN": launch.token,
    }
    return {**envs, **{name: value for name, value in ours.items() if value}}


def of_seat(seat: Seat, launch: Launch, *, port: int, cores: int | None, virtual: bool) -> dict[str, str]:
    """What one replica has besides: its place, as torchrun names it."""
    envs = {
        "COADAPT_ROLE": seat.role,
        "COADAPT_GPU_TYPE": seat.gpu_type,
        "NODE": seat.node,
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(seat.replicas),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(seat.local_replicas),
        "NODE_RANK": str(seat.node_rank),
        "GROUP_RANK": str(seat.node_rank),
        "GROUP_WORLD_SIZE": str(seat.nodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if virtual and seat.gpu_type in launch.paces:
        envs["COADAPT_PACE"] = launch.paces[seat.gpu_type]
    if (virtual or cores) and "OMP_NUM_THREADS" not in launch.envs:
        # replicas that share cores only get into each other's way with more
        envs["OMP_NUM_THREADS"] = str(cores or 1)
    return envs


def _kept(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _KEPT)

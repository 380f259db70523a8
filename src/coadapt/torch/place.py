"""Where this replica runs: read once from the environment that every launcher sets (torchrun's names, and our own)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from coadapt.errors import InputError


class Place(NamedTuple):
    """This replica among the others."""

    rank: int = 0
    replicas: int = 1
    local_rank: int = 0
    local_replicas: int = 1
    #: The job's name and attempt, where a scheduler started it.
    job: str = ""
    attempt: int = 0
    #: How often torchrun, or a keeper, has started all replicas of the attempt anew.
    restarts: int = 0
    #: Machines, where that is told; replicas may be spread unevenly.
    known_nodes: int = 0

    @property
    def namespace(self) -> str:
        """Where keys in a store begin: what an earlier attempt has left there must not be found by the next."""
        return f"coadapt/{self.job}/{self.attempt}/{self.restarts}"

    @property
    def nodes(self) -> int:
        """Machines; as all have equally many replicas, unless it is known."""
        return self.known_nodes or max(-(-self.replicas // self.local_replicas), 1)

    @property
    def first(self) -> bool:
        """Whether this replica speaks and writes for all."""
        return self.rank == 0


def here(environment: Mapping[str, str] = os.environ) -> Place:
    """The place the environment names; alone, if it names none."""
    replicas = _number(environment, "WORLD_SIZE", 1, least=1)
    rank = _number(environment, "RANK", 0, least=0)
    if rank >= replicas:
        raise InputError(f"RANK={rank} with WORLD_SIZE={replicas}: ranks count from 0")
    return Place(
        rank=rank,
        replicas=replicas,
        local_rank=_number(environment, "LOCAL_RANK", rank, least=0),
        local_replicas=_number(environment, "LOCAL_WORLD_SIZE", replicas, least=1),
        job=environment.get("COADAPT_JOB", ""),
        attempt=_number(environment, "COADAPT_ATTEMPT", 0, least=0),
        restarts=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0, least=0),
        known_nodes=_number(environment, "GROUP_WORLD_SIZE", 0, least=0),
    )


def _number(environment: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise InputError(f"{name}={text!r}: it must be a whole number of at least {least}")
    return value

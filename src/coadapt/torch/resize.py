"""Resizing in place: survivors rebuild the group, newcomers get their state from a live replica, leavers leave.

A newcomer is started with ``COADAPT_JOIN`` = the generation it is meant for. It runs the script up to the loop over epochs
beside the running ones (imports, data, model, CUDA context), says that it is ready, and waits. The launcher then writes the
notice; at the agreed step everybody meets in the new generation's group and the first replica, a survivor,
sends its state to those who have none.
"""

from __future__ import annotations

import io
import logging
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from coadapt.torch import notices
from coadapt.torch.elastic import leave
from coadapt.torch.group import Group
from coadapt.torch.notices import Notice
from coadapt.torch.place import Place
from coadapt.torch.state import to_bytes

if TYPE_CHECKING:
    from coadapt.torch.job import Job

log = logging.getLogger(__name__)
_PATIENCE = timedelta(hours=1)


def member() -> str:
    """This process's name among the replicas; given by the launcher."""
    return os.environ.get("COADAPT_MEMBER", "")


def first_generation() -> int:
    """The generation this process is started in; the launcher's store remembers earlier ones."""
    text = os.environ.get("COADAPT_GENERATION", "")
    return int(text) if text.isdigit() else 0


class Joining(NamedTuple):
    """A newcomer's part."""

    generation: int

    @staticmethod
    def asked() -> Joining | None:
        """Where the environment says that this process is one."""
        text = os.environ.get("COADAPT_JOIN", "")
        return Joining(int(text)) if text.isdigit() else None

    def join(self, job: Job) -> dict[str, Any]:
        """Waits for the others to come to the new generation, and returns the state they have."""
        store = job._group.connect()
        assert store is not None, "a newcomer has a launcher, and the launcher a store"
        store.set(f"ready{self.generation}/{member()}", "1")
        store.wait([f"generation{self.generation}/members"], _PATIENCE)
        notice = notices.decode(store.get(f"generation{self.generation}/members"))
        job._group = Group(_place(job, notice), job.device, generation=self.generation)
        job._training.group = job._group
        job._group.open()
        return _send_state(job, notice) or {}


def resize(job: Job, notice: Notice) -> None:
    """A survivor's or leaver's part, at the agreed step."""
    began = time.perf_counter()
    before = job.replicas
    job._measuring.flush()
    store = job._group.connect()
    assert store is not None
    if job._group.place.first:
        store.set(f"generation{notice.generation}/members", notices.encode(notice))
    job._model.synced_by(job._model.module)  # type: ignore[union-attr]
    gradients = job._training.gradients
    assert gradients is not None
    assert gradients.sync is not None
    gradients.sync.bring_home()
    gradients.sync.close()
    gradients.sync = None
    if member() not in notice.members:
        leave(job._group)
    job._group.close()
    job._group = Group(_place(job, notice), job.device, generation=notice.generation)
    job._training.group = job._group
    job._group.open()
    _send_state(job, notice)
    job._synchronise()
    job._adapt()
    kind = "grow" if job.replicas > before else "shrink" if job.replicas < before else "move"
    took = time.perf_counter() - began
    job._elastic.overheads_s[kind] = took
    if job.rank == 0:
        store.set(f"running{notice.generation}", "1")
        log.info("resized %d -> %d replicas in %.3f s (%s)", before, job.replicas, took, kind)


def _place(job: Job, notice: Notice) -> Place:
    """Where this process is in the new generation. All replicas are on one machine: the launcher's."""
    rank, count = notice.members.index(member()), len(notice.members)
    return job._group.place._replace(rank=rank, replicas=count, local_rank=rank, local_replicas=count)


def _send_state(job: Job, notice: Notice) -> dict[str, Any] | None:
    """The first replica's state, on those who have joined; None on the others. All of the generation call it."""
    newcomer = job._joining is not None
    if job.replicas == 1:
        return None
    flags = job._group.sum([float(newcomer and job.rank == rank) for rank in range(job.replicas)])
    if not any(flags):
        return None
    # gathering asks every replica for its generators: a newcomer's are as good as any
    state = job._state.gather()
    payload = to_bytes(state) if state is not None else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([payload.numel()], dtype=torch.int64)
    dist.broadcast(size, src=0)
    if state is None:
        payload = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(payload, src=0)
    if not newcomer:
        return None
    found: dict[str, Any] = torch.load(
        io.BytesIO(payload.numpy().tobytes()), map_location="cpu", weights_only=False
    )
    return found

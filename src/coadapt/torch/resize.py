"""Resizing in place: survivors rebuild the group, newcomers get their state from a live replica, leavers leave.

A newcomer is started with ``COADAPT_JOIN`` = the generation it is meant for. It runs the script up to the loop over epochs
beside the running ones (imports, data, model, CUDA context), says that it is ready, and waits. Who started it then writes the
notice; at the agreed step everybody meets in the new generation's group and the first replica, a survivor,
sends its state to those who have none. Any replica may leave, the first one too: the store is not its own.
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

from coadapt.errors import InputError
from coadapt.torch import notices
from coadapt.torch.elastic import leave
from coadapt.torch.group import Group
from coadapt.torch.notices import Notice
from coadapt.torch.place import Place
from coadapt.torch.state import to_bytes

if TYPE_CHECKING:
    from coadapt.torch.loop import Loop

log = logging.getLogger(__name__)
_PATIENCE = timedelta(hours=1)


def member() -> str:
    """This process's name among the replicas; given by who started it."""
    return os.environ.get("COADAPT_MEMBER", "")


class Joining(NamedTuple):
    """A newcomer's part."""

    generation: int

    @staticmethod
    def asked() -> Joining | None:
        """Where the environment says that this process is one."""
        text = os.environ.get("COADAPT_JOIN", "")
        if not text:
            return None
        if not text.isdigit() or not member() or not os.environ.get("COADAPT_STORE"):
            raise InputError(
                f"COADAPT_JOIN={text!r}: it must be a generation's number, beside COADAPT_MEMBER and COADAPT_STORE"
            )
        return Joining(int(text))

    def join(self, loop: Loop) -> dict[str, Any]:
        """Waits for the others to come to the new generation, and returns the state they have."""
        store = loop.group.connect()
        assert store is not None, "checked when it was asked to join"
        store.set(f"ready{self.generation}/{member()}", "1")
        store.wait([f"generation{self.generation}/members"], _PATIENCE)
        notice = notices.decode(store.get(f"generation{self.generation}/members"))
        _enter(loop, notice)
        return _send_state(loop) or {}


def resize(loop: Loop, notice: Notice) -> None:
    """A survivor's or leaver's part, at the agreed step."""
    began = time.perf_counter()
    before = loop.group.place.replicas
    staying = member() in notice.members
    # the first replica may be the one that leaves: another one goes on with its reports
    loop.measuring.flush(last=not staying)
    loop.measuring.hand_over()
    store = loop.group.connect()
    assert store is not None
    if loop.group.place.first:
        store.set(f"generation{notice.generation}/members", notices.encode(notice))
    assert loop.model is not None
    loop.model.synced_by(loop.model.guarded)
    gradients = loop.training.gradients
    assert gradients is not None
    assert gradients.sync is not None
    gradients.sync.bring_home()
    gradients.sync.close()
    gradients.sync = None
    if not staying:
        leave(loop.group)
    loop.group.close()
    _enter(loop, notice)
    _send_state(loop)
    loop.synchronise()
    loop.adapt()
    replicas = loop.group.place.replicas
    kind = "grow" if replicas > before else "shrink" if replicas < before else "move"
    took = time.perf_counter() - began
    loop.elastic.overheads_s[kind] = took
    if loop.group.place.first:
        store.set(f"running{notice.generation}", "1")
        log.info("resized %d -> %d replicas in %.3f s (%s)", before, replicas, took, kind)


def _enter(loop: Loop, notice: Notice) -> None:
    """This process is one of the new generation from here on."""
    place = place_in(notice, member(), loop.group.place)
    loop.group = Group(place, loop.device, generation=notice.generation)
    loop.training.group = loop.group
    loop.group.open()


def place_in(notice: Notice, name: str, before: Place) -> Place:
    """Where ``name`` is in the generation of ``notice``; all are on one machine unless it says on which."""
    rank = notice.members.index(name)
    nodes = notice.nodes or (0,) * len(notice.members)
    here = [each for each, node in enumerate(nodes) if node == nodes[rank]]
    return before._replace(
        rank=rank,
        replicas=len(notice.members),
        local_rank=here.index(rank),
        local_replicas=len(here),
        known_nodes=len(set(nodes)),
    )


def _send_state(loop: Loop) -> dict[str, Any] | None:
    """The first replica's state, on those who have joined; None on the others. All of the generation call it."""
    newcomer, place = loop.joining is not None, loop.group.place
    if place.replicas == 1:
        return None
    flags = loop.group.sum([float(newcomer and place.rank == rank) for rank in range(place.replicas)])
    if not any(flags):
        return None
    # gathering asks every replica for its generators: a newcomer's are as good as any
    state = loop.state.gather()
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

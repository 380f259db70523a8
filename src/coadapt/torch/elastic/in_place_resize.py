"""Resizing in place: survivors rebuild the process group, newcomers get their state from a live replica, leavers exit.

A newcomer is started with ``COADAPT_JOIN`` = the generation that it joins. It runs the script up to the loop over epochs while the
others train (imports, data, model, CUDA context), then announces itself as ready and waits. Whoever started it writes the resize
notice. At the agreed step all replicas enter the group of the new generation, and its first replica, a survivor, sends
its state to the newcomers. Any replica may leave, the first one too: the store belongs to the launcher or the keeper.

The functions here are the parts of that protocol; ``TrainingLoop`` calls them in order.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from coadapt.errors import InputError
from coadapt.torch.elastic import notices
from coadapt.torch.elastic.notices import Notice
from coadapt.torch.elastic.plain_data import pack
from coadapt.torch.elastic.process_group import Group, Place
from coadapt.torch.elastic.training_state import TrainingState
from coadapt.wire.agent import Variable

_PATIENCE = timedelta(hours=1)


def member_name() -> str:
    """The name of this process among the replicas, given by the launcher or the keeper."""
    return os.environ.get(Variable.MEMBER, "")


def joined_generation() -> int | None:
    """The generation that this process joins as a newcomer; None if it is none."""
    text = os.environ.get(Variable.JOIN, "")
    if not text:
        return None
    if not text.isdigit() or not member_name() or not os.environ.get(Variable.STORE):
        raise InputError(
            f"COADAPT_JOIN={text!r}: it must be the number of a generation, and COADAPT_MEMBER and COADAPT_STORE must be set"
        )
    return int(text)


def await_generation(group: Group, generation: int) -> Notice:
    """A newcomer announces itself as ready and waits for the others to reach the new generation."""
    store = group.connect()
    assert store is not None, "joined_generation() has checked it"
    store.set(f"ready{generation}/{member_name()}", "1")
    store.wait([f"generation{generation}/members"], _PATIENCE)
    return notices.decode(store.get(f"generation{generation}/members"))


def announce_members(group: Group, notice: Notice) -> None:
    """The first replica of the old generation tells newcomers who is in the new one."""
    if group.place.first:
        store = group.connect()
        assert store is not None
        store.set(f"generation{notice.generation}/members", notices.encode(notice))


def announce_running(group: Group) -> None:
    """The first replica of the new generation tells the launcher or the keeper that the resize is done."""
    if group.place.first:
        store = group.connect()
        assert store is not None
        store.set(f"running{group.generation}", "1")


def next_group(before: Group, notice: Notice) -> Group:
    """The process group of the new generation, joined by this replica."""
    place = place_in(notice, member_name(), before.place)
    group = Group(place, before.device, generation=notice.generation)
    group.open()
    return group


def place_in(notice: Notice, name: str, before: Place) -> Place:
    """The place of ``name`` in the generation of ``notice``; all replicas are on one machine unless it names machines."""
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


def send_state(group: Group, state: TrainingState, *, newcomer: bool) -> dict[str, Any] | None:
    """Send the first replica's state to the newcomers. All replicas of the generation call it.

    Returns the state on a newcomer, None on the others.
    """
    place = group.place
    if place.replicas == 1:
        return None
    flags = group.sum([float(newcomer and place.rank == rank) for rank in range(place.replicas)])
    if not any(flags):
        return None
    # gathering collects the random generators of every replica, newcomers included
    gathered = state.gather()
    payload = group.sent(lambda: None if gathered is None else pack(gathered))
    if not newcomer:
        return None
    found: dict[str, Any] = group.received(payload)
    return found


def resize_kind(before: int, after: int) -> str:
    """What a change from ``before`` to ``after`` replicas is called in measurements."""
    return "grow" if after > before else "shrink" if after < before else "move"

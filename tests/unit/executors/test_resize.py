from __future__ import annotations

from typing import Any

import msgspec

from coadapt.executors.gang.messages import Notice
from coadapt.executors.gang.replica_seats import seated
from coadapt.executors.gang.resize import Ask, Clear, GangReplica, InPlaceResize, Join, Kill, Step


class World:
    """A resize of ``staying`` and ``leaving`` replicas for which ``joining`` are started, and the store that they meet at."""

    def __init__(self, staying: int, leaving: int, joining: int, *keys: str) -> None:
        names = [f"n{i}" for i in range(staying + leaving + joining)]
        replicas = [
            GangReplica(name=f"m{i}", number=i, seat=seat, machine="here")
            for i, seat in enumerate(seated(names, "t4"))
        ]
        self.keys, self.notices, self.started = set(keys), list[Any](), list[int]()
        self.now, self.silent, self.done = 0.0, False, list[Kill | Clear]()
        self._joining = replicas[staying + leaving :]
        self._open: Ask | Notice | None = None
        self.move = InPlaceResize(
            0,
            staying=replicas[:staying],
            leaving=replicas[staying : staying + leaving],
            nodes=names[staying + leaving :],
            grace_s=30.0,
            now=0.0,
        )
        self.running = {replica.name for replica in replicas}

    def do(self, step: Step) -> None:
        if isinstance(step, Join):
            self.started.append(step.generation)
            self.move.joining = self._joining
        elif isinstance(step, Kill | Clear):
            self.done.append(step)
        elif step is not None:
            assert self._open is None, "one question at a time"
            self._open = step

    def turn(self, times: int = 1, *, step_s: float = 1.0) -> str:
        for _ in range(times):
            asked, self._open = self._open, None
            if isinstance(asked, Notice):
                self.notices.append(msgspec.to_builtins(asked))
                self.do(self.move.answered(True, False, self.now))
            elif asked is not None and not self.silent:
                self.do(self.move.answered(True, set(asked.keys) <= self.keys, self.now))
            self.now += step_s
            self.do(self.move.look(self.now, self.running))
        return self.move.stage


def test_newcomers_are_awaited_before_the_others_are_told() -> None:
    world = World(1, 1, 1, "listening0")
    assert world.turn(5) == "joining"
    assert (world.started, world.notices) == ([1], [])
    world.keys.add("ready1/m2")
    assert world.turn(3) == "moving"
    assert world.notices == [{"kind": "resize", "generation": 1, "members": ("m0", "m2"), "nodes": (0, 1)}]
    world.keys.add("running1")
    assert world.turn(3) == "leaving"
    assert [replica.name for replica in world.move.members] == ["m0", "m2"]
    assert world.move.generation == 1


def test_those_that_leave_are_killed_after_their_grace_and_cleared_once_they_are_gone() -> None:
    world = World(1, 1, 0, "listening0", "running1")
    assert world.turn(6) == "leaving"
    assert world.done == []
    leaver = world.move.leaving[0]
    assert world.turn(1, step_s=40.0) == "leaving"
    assert world.done == [Kill((leaver,))]
    world.running.discard("m1")
    assert world.turn(2) == "leaving"
    assert world.done == [Kill((leaver,)), Clear((leaver,))]
    world.move.gone(["m0"])
    assert world.turn() == "leaving"
    world.move.gone(["m1"])
    assert world.turn() == "done"


def test_where_nobody_leaves_it_is_done_as_soon_as_the_generation_runs() -> None:
    assert World(1, 0, 1, "listening0", "ready1/m1", "running1").turn(8) == "done"


def test_where_nobody_stays_all_join_before_the_old_ones_leave() -> None:
    world = World(0, 1, 1, "listening0", "ready1/m1", "running1")
    assert world.turn(8) == "moving"
    assert [notice["members"] for notice in world.notices] == [("m0", "m1"), ("m1",)]
    world.keys.add("running2")
    assert world.turn(3) == "leaving"
    assert world.move.generation == 2


def test_job_that_does_not_listen_is_left_alone() -> None:
    world = World(1, 0, 1)
    assert world.turn(3) == "failed"
    assert world.started == world.notices == []


def test_newcomers_that_never_get_ready_end_the_resize() -> None:
    world = World(1, 0, 1, "listening0")
    assert world.turn(3) == "joining"
    assert world.turn(8, step_s=100.0) == "joining"
    assert world.turn(2, step_s=100.0) == "failed"
    assert world.notices == []


def test_generation_that_never_runs_ends_the_resize() -> None:
    world = World(1, 1, 0, "listening0")
    assert world.turn(5) == "moving"
    assert world.turn(30, step_s=10.0) == "failed"


def test_store_that_is_silent_or_cannot_be_asked_ends_the_resize() -> None:
    world = World(1, 1, 0, "listening0")
    world.silent = True
    assert world.turn(3, step_s=10.0) == "asking"
    assert world.turn(4, step_s=10.0) == "failed"
    world = World(1, 1, 0, "listening0")
    world.turn(2)
    assert world.move.answered(False, False, 3.0) is None
    assert world.move.stage == "failed"

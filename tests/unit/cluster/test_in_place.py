from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from coadapt.cluster.agents import interpreter_of
from coadapt.cluster.devices import Taken
from coadapt.cluster.in_place import InPlace
from coadapt.cluster.membership import seated
from coadapt.cluster.protocol import Launch
from coadapt.cluster.replica import Replica
from coadapt.cluster.stores import Store, StoreAnswer


class FakeStore:
    """Keys that are there, notices that were written; answers when it is let."""

    def __init__(self, *keys: str) -> None:
        self.keys, self.notices, self.gone = set(keys), list[Any](), False
        self._waiting: list[Callable[[], None]] = []

    def ask(self, question: Mapping[str, Any], then: Callable[[StoreAnswer], None]) -> None:
        assert (question["job"], question["attempt"], question["restarts"]) == ("j", 1, 0)
        if question["ask"] == "notify":
            self.notices.append(question["notice"])
            self._waiting.append(lambda: then(StoreAnswer(ok=True)))
        else:
            self._waiting.append(lambda: then(StoreAnswer(ok=True, there=set(question["keys"]) <= self.keys)))

    def answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each()


class World:
    """A resize of replicas on ``before`` where those on ``joining`` are started."""

    def __init__(self, tmp_path: Path, staying: int, leaving: int, joining: int, *keys: str) -> None:
        names = [f"n{i}" for i in range(staying + leaving + joining)]
        self.replicas = [
            Replica(i, seat, Taken(seat.node), f"m{i}", tmp_path)
            for i, seat in enumerate(seated(names, "t4"))
        ]
        self.store, self.now, self.started = FakeStore(*keys), 0.0, list[int]()
        self.move = InPlace(
            cast("Store", self.store),
            {"job": "j", "attempt": 1, "restarts": 0},
            0,
            staying=self.replicas[:staying],
            leaving=self.replicas[staying : staying + leaving],
            start=lambda generation: (self.started.append(generation), self.replicas[staying + leaving :])[1],
            now=0.0,
        )

    def turn(self, times: int = 1, *, step_s: float = 1.0) -> str:
        for _ in range(times):
            self.store.answer()
            self.now += step_s
            self.move.pursue(self.now)
        return self.move.stage


def test_newcomers_are_awaited_before_the_others_are_told(tmp_path: Path) -> None:
    world = World(tmp_path, 1, 1, 1, "listening0")
    assert world.turn(5) == "joining"
    assert (world.started, world.store.notices) == ([1], [])
    world.store.keys.add("ready1/m2")
    assert world.turn(3) == "moving"
    assert world.store.notices == [
        {"kind": "resize", "generation": 1, "members": ["m0", "m2"], "nodes": [0, 1]}
    ]
    world.store.keys.add("running1")
    assert world.turn(3) == "done"
    assert [replica.member for replica in world.move.members] == ["m0", "m2"]
    assert world.move.generation == 1


def test_where_nobody_stays_all_join_before_the_old_ones_leave(tmp_path: Path) -> None:
    world = World(tmp_path, 0, 1, 1, "listening0", "ready1/m1", "running1")
    assert world.turn(8) == "moving"
    assert [notice["members"] for notice in world.store.notices] == [["m0", "m1"], ["m1"]]
    world.store.keys.add("running2")
    assert world.turn(3) == "done"
    assert world.move.generation == 2


def test_job_that_does_not_listen_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path, 1, 0, 1)
    assert world.turn(3) == "failed"
    assert world.started == world.store.notices == []


def test_newcomers_that_never_get_ready_end_the_resize(tmp_path: Path) -> None:
    world = World(tmp_path, 1, 0, 1, "listening0")
    assert world.turn(3) == "joining"
    assert world.turn(8, step_s=100.0) == "joining"
    assert world.turn(2, step_s=100.0) == "failed"
    assert world.store.notices == []


def test_generation_that_never_runs_ends_the_resize(tmp_path: Path) -> None:
    world = World(tmp_path, 1, 1, 0, "listening0")
    assert world.turn(5) == "moving"
    assert world.turn(30, step_s=10.0) == "failed"


def test_store_that_is_silent_or_gone_ends_the_resize(tmp_path: Path) -> None:
    world = World(tmp_path, 1, 1, 0, "listening0")
    world.move.pursue(30.0)
    assert world.move.stage == "asking"
    world.move.pursue(70.0)
    assert world.move.stage == "failed"
    world = World(tmp_path, 1, 1, 0, "listening0")
    world.turn(2)
    world.store.gone = True
    assert world.turn() == "failed"


def test_script_with_our_agent_is_known_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text("import coadapt.torch as coadapt\n")
    (tmp_path / "other.py").write_text("import torch\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("from coadapt.torch import init\n")
    envs = {"PATH": str(tmp_path)}
    (tmp_path / "python3").touch(mode=0o755)

    def found(*command: str, **more: str) -> str | None:
        return interpreter_of(Launch(command=command, workdir=str(tmp_path), envs=more), envs)

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

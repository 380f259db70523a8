"""Conformance suite of engines, against a real one.

Subclass ``EngineConformance`` and implement ``room``. The suite runs small programs where agents would run, so that an adapter can be
tested without a controller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Protocol

from coadapt.executors.engines._base import Engine, SeenUnit, Unit, unit_name
from coadapt.model import Node

#: Seconds that an engine may take; it only ends tests that would wait for ever.
DEADLINE_S = 120.0


class EngineRoom(Protocol):
    """An engine with at least two nodes and nothing of cluster ``CLUSTER`` on it; ``directory`` is seen by all nodes."""

    @property
    def engine(self) -> Engine: ...

    def processes(self, unit: str) -> int:
        """Returns how many processes of a unit run, however the test knows: never by the engine's own word."""

    def adapter(self) -> Engine:
        """Another adapter for the same engine, as a hub that was restarted makes one."""

    def close(self) -> None:
        """Leaves nothing behind."""


#: Identity of the log in names of units.
CLUSTER = "conformance"


class EngineConformance:
    """Requirements of the hub on every engine."""

    def room(self, directory: Path) -> EngineRoom:
        """A new room."""
        raise NotImplementedError

    def test_nodes_have_names_and_gpus(self, tmp_path: Path) -> None:
        with closing(self.room(tmp_path)) as room:
            nodes = list(room.engine.nodes())
            assert len(nodes) >= 2
            assert len({each.node.name for each in nodes}) == len(nodes)
            assert all(each.node.gpus > 0 and not each.closed for each in nodes)

    def test_unit_that_is_claimed_twice_runs_once_and_ends_when_it_is_released(self, tmp_path: Path) -> None:
        with closing(self.room(tmp_path)) as room:
            unit = _unit(room, 0, 1)
            room.engine.claim(unit)
            room.engine.claim(unit)
            _until(lambda: _states(room.engine, unit) == ["running"], lambda: room.engine.units())
            _until(lambda: room.processes(unit.name) == 1)
            room.adapter().claim(unit)
            assert len(_states(room.engine, unit)) == 1
            room.engine.release([unit.name])
            room.engine.release([unit.name, unit_name(CLUSTER, "never-claimed", 9)])
            _until(lambda: all(state == "ended" for state in _states(room.engine, unit)))
            # an engine's "ended" is not "gone"; that it comes to that is its duty
            _until(lambda: room.processes(unit.name) == 0, lambda: "processes of a unit that has ended")

    def test_units_are_found_by_another_adapter(self, tmp_path: Path) -> None:
        with closing(self.room(tmp_path)) as room:
            units = [_unit(room, 0, 1), _unit(room, 1, 2)]
            for unit in units:
                room.engine.claim(unit)
            another = room.adapter()
            _until(lambda: {each.name for each in another.units()} >= {unit.name for unit in units})
            another.release([unit.name for unit in units])
            for unit in units:
                _until(lambda u=unit: all(s == "ended" for s in _states(another, u)))  # type: ignore[misc]

    def test_unit_without_room_waits_and_says_why(self, tmp_path: Path) -> None:
        with closing(self.room(tmp_path)) as room:
            first, second = _unit(room, 0, 1), _unit(room, 0, 2)
            room.engine.claim(first)
            _until(lambda: _states(room.engine, first) == ["running"])
            room.engine.claim(second)
            _until(lambda: any(each.reason for each in _seen(room.engine, second)))
            assert _states(room.engine, second) == ["waiting"]
            room.engine.release([first.name])
            _until(lambda: _states(room.engine, second) == ["running"])

    def test_unit_that_is_released_before_it_runs_never_does(self, tmp_path: Path) -> None:
        with closing(self.room(tmp_path)) as room:
            first, second = _unit(room, 0, 1), _unit(room, 0, 2)
            room.engine.claim(first)
            _until(lambda: _states(room.engine, first) == ["running"])
            room.engine.claim(second)
            room.engine.release([second.name])
            room.engine.release([first.name])
            for unit in (first, second):
                _until(lambda u=unit: all(s == "ended" for s in _states(room.engine, u)))  # type: ignore[misc]
            assert room.processes(second.name) == 0

    def test_secrets_are_not_in_what_people_see(self, tmp_path: Path) -> None:
        with closing(self.room(tmp_path)) as room:
            unit = _unit(room, 0, 1)
            assert unit.environment["COADAPT_NODE_TOKEN"] not in room.engine.script(unit)
            assert unit.name in room.engine.script(unit)


def _unit(room: EngineRoom, nth: int, number: int) -> Unit:
    node: Node = room.engine.nodes()[nth].node
    name = unit_name(CLUSTER, node.name, number)
    environment = {
        "COADAPT_UNIT": name,
        "COADAPT_URL": "http://127.0.0.1:9",
        "COADAPT_NODE": node.name,
        "COADAPT_NODE_TOKEN": "coadapt-secret-of-the-suite",
    }
    return Unit(name=name, node=node, environment=environment)


def _seen(engine: Engine, unit: Unit) -> list[SeenUnit]:
    return [each for each in engine.units() if each.name == unit.name]


def _states(engine: Engine, unit: Unit) -> list[str]:
    return [each.state for each in _seen(engine, unit)]


def _until(condition: Callable[[], bool], what: Callable[[], object] = lambda: "the condition") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:.0f} s: {what()}"
        time.sleep(0.1)

"""The hub's thread for an engine: lists units and nodes, claims what the hub wants, releases what it does not.

Engine calls block, and an engine may be silent for minutes; the hub's own thread only reads the newest ``EngineView``. All units
are listed by one request, at most every two seconds while nothing changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from coadapt.errors import CoadaptError
from coadapt.executors.agent.api_link import boot_time_s
from coadapt.executors.engines._base import Engine, EngineNode, EngineRefusedError, SeenUnit, Unit

log = logging.getLogger(__name__)
#: Seconds between two listings of units at rest, between two listings of nodes, and after a call that failed.
_UNITS_S, _NODES_S, _FAILED_S = 2.0, 5.0, 1.0
#: Seconds after which a unit that was claimed and is not listed is claimed again.
_CLAIM_AGAIN_S = 10.0


class EngineView(NamedTuple):
    """What the engine said last."""

    #: CLOCK_BOOTTIME before the units were asked for; what ended before that moment is not listed as running.
    asked_at: float
    units: Sequence[SeenUnit]
    nodes: Sequence[EngineNode]
    #: Why the engine refused a unit, by the unit's name.
    refused: Mapping[str, str]


class EngineThread:
    """``start`` is called once it was said what is wanted: all else would be released."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._wanted: dict[str, Unit] = {}
        self._kept: frozenset[str] = frozenset()
        #: The newest view; None until the engine has answered once. And what keeps it from answering now.
        self.view: EngineView | None = None
        self.trouble = ""
        self._claimed: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        self._nodes: Sequence[EngineNode] = ()
        self._nodes_at = float("-inf")
        self._closed = False

    def start(self, wake: Callable[[], None]) -> None:
        """Begins to ask the engine; ``wake`` is called when there is a new view."""
        self._wake = wake
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def close(self) -> None:
        """Asks nothing any more, after what it asks now."""
        self._closed = True
        self._changed.set()

    def want(self, units: Mapping[str, Unit], kept: frozenset[str]) -> None:
        """States all units that are wanted and have no agent yet, and those that have one; all others are released."""
        with self._lock:
            changed = set(units) != set(self._wanted) or kept != self._kept
            self._wanted, self._kept = dict(units), kept
        if changed:
            self._changed.set()

    def _run(self) -> None:
        while not self._closed:
            self._changed.clear()
            try:
                self._look()
                self.trouble, pause_s = "", _UNITS_S
            except CoadaptError as error:
                if str(error) != self.trouble:
                    log.warning("%s", error)
                self.trouble, pause_s = str(error), _FAILED_S
            except Exception:
                log.exception("the engine's adapter failed")
                self.trouble, pause_s = "internal error of the engine's adapter; see the hub's log", _FAILED_S
            self._wake()
            self._changed.wait(pause_s)

    def _look(self) -> None:
        asked_at = boot_time_s()
        if asked_at - self._nodes_at >= _NODES_S:
            self._nodes, self._nodes_at = self._engine.nodes(), asked_at
        with self._lock:
            wanted, kept = dict(self._wanted), self._kept
        units = self._engine.units()
        listed = {unit.name for unit in units}
        self.view = EngineView(asked_at, units, self._nodes, dict(self._refused))
        unneeded = {u.name for u in units if u.state in ("waiting", "running")} - kept - set(wanted)
        if unneeded:
            self._engine.release(sorted(unneeded))
        for name, unit in wanted.items():
            if name not in listed and boot_time_s() - self._claimed.get(name, float("-inf")) > _CLAIM_AGAIN_S:
                self._claim(name, unit)

    def _claim(self, name: str, unit: Unit) -> None:
        self._claimed[name] = boot_time_s()
        try:
            self._engine.claim(unit)
            self._refused.pop(name, None)
        except EngineRefusedError as error:
            self._refused[name] = str(error)
            log.warning("%s", error)

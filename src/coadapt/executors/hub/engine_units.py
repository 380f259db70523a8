"""Units of an engine as the hub keeps them: one for each node that a job needs, wanted, let in once, released when idle.

A unit is *wanted* until it is *released* (nothing used it for a while) or *over* (its agent is gone, or it ended before one came). An
agent is let in only for a unit that is wanted, and only in the unit's first life: a job that the engine started again, revived or
started twice finds its name taken, and ends. All methods that change rows are called inside the hub's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from coadapt.errors import InputError
from coadapt.executors.agent.session_messages import Join
from coadapt.executors.engines._base import EngineNode, SeenUnit, Unit, unit_name
from coadapt.executors.hub.engine_thread import EngineThread, EngineView
from coadapt.executors.hub.hub_journal import HubJournal, SavedUnit
from coadapt.model import AnyEvent, Node, NodeDrained, NodeJoined, NodeLost, NodeOpened

#: Seconds until a node is tried again after a unit there ended without an agent.
_AGAIN_S = 5.0


class EndedForGoodError(InputError):
    """An agent must not be let in, now or later."""


class EngineUnits:
    """The units of one hub.

    Args:
        thread: asks the engine.
        journal: the hub's rows.
        cluster: identity of the event log, part of the names of units.
        environment: variables for the agent in a unit, by the names of unit and node.
        idle_s: seconds for which a unit that nothing uses is kept.
    """

    def __init__(
        self,
        thread: EngineThread,
        journal: HubJournal,
        *,
        cluster: str,
        environment: Callable[[str, str], Mapping[str, str]],
        idle_s: float,
    ) -> None:
        self.thread, self._journal, self._cluster = thread, journal, cluster
        self._environment, self._idle_s = environment, idle_s
        #: Nodes as last announced, and those that the engine closed.
        self._nodes: dict[str, Node] = {}
        self._closed: set[str] = set()
        self._seen: EngineView | None = None
        #: Since when nothing uses a unit, and before when a node is not tried again.
        self._idle_since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self.reasons: dict[str, str] = {}
        self.restore()

    def restore(self) -> None:
        """Takes over what the store has."""
        self._units = {unit.name: (unit, state) for unit, state in self._journal.units()}
        known = msgspec.json.decode(self._journal.text("engine_nodes") or "{}", type=dict[str, Node])
        self._nodes = known
        self._closed = set(msgspec.json.decode(self._journal.text("engine_closed") or "[]", type=list[str]))

    def start(self, wake: Callable[[], None]) -> None:
        """Begins to ask the engine, now that it is known what is wanted; ``wake`` is called when there is news."""
        self.tell()
        self.thread.start(wake)

    # -- what the engine says -------------------------------------------------------------------------

    def news(self) -> EngineView | None:
        """Returns the engine's view, if it is a new one."""
        view = self.thread.view
        return view if view is not None and view is not self._seen else None

    def events(self, view: EngineView) -> list[AnyEvent]:
        """Takes a view; returns what became of nodes, and notes units that ended before an agent came."""
        self._seen = view
        found = self._node_events(view.nodes)
        self.reasons = {
            name: view.refused.get(name, "") or _reason(view.units, name)
            for name in (*self._units, *view.refused)
        }
        return found

    def _node_events(self, nodes: Iterable[EngineNode]) -> list[AnyEvent]:
        now = {each.node.name: each for each in nodes}
        events: list[AnyEvent] = []
        for name, each in now.items():
            if self._nodes.get(name) != each.node:
                events.append(NodeJoined(node=each.node))
            if each.closed and name not in self._closed:
                events.append(NodeDrained(node=name))
            elif not each.closed and name in self._closed:
                events.append(NodeOpened(node=name))
        events += [NodeLost(node=name) for name in self._nodes if name not in now]
        if events:
            self._nodes = {name: each.node for name, each in now.items()}
            self._closed = {name for name, each in now.items() if each.closed}
            self._journal.set_text("engine_nodes", msgspec.json.encode(self._nodes).decode())
            self._journal.set_text("engine_closed", msgspec.json.encode(sorted(self._closed)).decode())
        return events

    def agrees(self, unit: str, since: float) -> bool:
        """Whether the engine, asked after ``since``, says that nothing of a unit runs; False while it is silent."""
        view = self.thread.view
        if not unit:
            return True
        if view is None or view.asked_at < since:
            return False
        return all(seen.state == "ended" for seen in view.units if seen.name == unit)

    # -- what the hub wants ---------------------------------------------------------------------------

    def want(self, nodes: Collection[str], now: float) -> None:
        """Sees to it that each of these nodes has a unit, or will have one."""
        for name in nodes:
            node = self._nodes.get(name)
            if node is None or name in self._closed or now < self._not_before.get(name, now):
                continue
            if not any(u.node == name and state == "wanted" for u, state in self._units.values()):
                number = int(self._journal.text("last_unit") or 0) + 1
                self._journal.set_text("last_unit", str(number))
                unit = SavedUnit(
                    name=unit_name(self._cluster, name, number),
                    node=name,
                    gpus=node.gpus,
                    gpu_type=node.gpu_type,
                    asked_at=now,
                )
                self._save(unit, "wanted")

    def admit(self, request: Join) -> None:
        """Lets an agent into its unit; EndedForGoodError if the unit is not wanted, or had another life."""
        unit, state = self._units.get(request.unit, (None, ""))
        if unit is None or state != "wanted":
            raise EndedForGoodError(
                f"unit {request.unit or '(none)'} is not wanted (any more); this agent ends"
            )
        if unit.generation and unit.generation != request.generation:
            raise EndedForGoodError(
                f"unit {unit.name} has had an agent in another life of it; this agent ends"
            )
        if [node.name for node in request.nodes] != [unit.node]:
            raise EndedForGoodError(
                f"unit {unit.name} is on node {unit.node}, not on this one; this agent ends"
            )
        self._save(
            msgspec.structs.replace(unit, generation=request.generation, session=request.session), "wanted"
        )

    def usable(self, unit: str) -> bool:
        """Whether the agent of a unit may get new work."""
        return self._units.get(unit, (None, ""))[1] == "wanted"

    def session_gone(self, unit: str) -> None:
        """Notes that the agent of a unit is gone for good."""
        if unit in self._units:
            self._save(self._units[unit][0], "over")

    def look(self, busy: Collection[str], needed: Collection[str], now: float) -> None:
        """Releases units that nothing uses, and gives up those that ended without an agent.

        Args:
            busy: units whose agents have something to do.
            needed: nodes on which something is to start.
            now: the present time.
        """
        for name, (unit, state) in list(self._units.items()):
            if state != "wanted":
                continue
            if not unit.session:
                if self._ended_unseen(unit) or unit.node not in needed:
                    self._not_before[unit.node] = now + _AGAIN_S
                    self._save(unit, "over")
            elif name in busy or unit.node in needed:
                self._idle_since.pop(name, None)
            elif now - self._idle_since.setdefault(name, now) >= self._idle_s:
                self._save(unit, "released")
        self.want(needed, now)

    def _ended_unseen(self, unit: SavedUnit) -> bool:
        view = self._seen
        if view is None:
            return False
        seen = [each for each in view.units if each.name == unit.name]
        return bool(seen) and all(each.state == "ended" for each in seen)

    def waiting_for(self, nodes: Collection[str]) -> tuple[list[str], str]:
        """Returns the units on these nodes that have no agent yet, and the engine's reason."""
        open_units = [
            unit.name
            for unit, state in self._units.values()
            if state == "wanted" and not unit.session and unit.node in nodes
        ]
        reasons = [self.reasons.get(name, "") for name in open_units]
        return open_units, next((reason for reason in reasons if reason), "") or self.thread.trouble

    def tell(self) -> None:
        """Tells the thread what is wanted; after the transaction."""
        wanted, kept = {}, set()
        for name, (unit, state) in self._units.items():
            if state == "wanted" and unit.session:
                kept.add(name)
            elif state == "wanted":
                environment = dict(self._environment(name, unit.node))
                if "COADAPT_URL" not in environment:
                    kept.add(name)  # the API does not listen yet: neither claimed nor released
                    continue
                node = self._nodes.get(unit.node) or Node(
                    name=unit.node, gpus=unit.gpus, gpu_type=unit.gpu_type
                )
                wanted[name] = Unit(
                    name=name, node=node, environment=dict(self._environment(name, unit.node))
                )
        self.thread.want(wanted, frozenset(kept))

    def _save(self, unit: SavedUnit, state: str) -> None:
        self._journal.save_unit(unit, state)
        if state == "over":
            self._units.pop(unit.name, None)
            self._idle_since.pop(unit.name, None)
        else:
            self._units[unit.name] = (unit, state)


def _reason(units: Iterable[SeenUnit], name: str) -> str:
    return next((unit.reason for unit in units if unit.name == name and unit.reason), "")

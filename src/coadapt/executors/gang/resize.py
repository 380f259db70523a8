"""A resize in place, step by step (docs/agent-protocol.md). Pure: its inputs are answers and the time, its output is the
next step.

asking (can it?) -> joining (newcomers get ready beside the others) -> moving (a notice, and the next generation runs)
-> leaving (replicas that are no longer members are gone with all processes they had started) -> done. Until the first
notice the job is unaffected. If a step fails or takes too long the resize has failed, and the job is restarted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from coadapt.executors.gang.messages import Notice
from coadapt.executors.gang.replica_seats import Seat, generations

#: Most seconds for newcomers to become ready (others train meanwhile), for a generation to begin, and for an answer.
_JOIN_S, _MOVE_S, _ANSWER_S = 900.0, 180.0, 60.0
_LOOK_AGAIN_S = 0.05
#: Seconds after which a process that survived SIGKILL is killed again.
KILL_AGAIN_S = 0.25

Stage = Literal["asking", "joining", "moving", "leaving", "done", "failed"]


@dataclass(slots=True, eq=False)
class GangReplica:
    """One replica as its gang knows it."""

    name: str
    number: int
    seat: Seat
    machine: str
    #: Whether its exit counts for the job: not while it joins or leaves.
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """Step: ask the store whether it has all these keys."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Step: start the newcomers for this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Step: kill these members, which should have left and still run."""

    members: tuple[GangReplica, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """Step: end the processes that these members, which have left, had started."""

    members: tuple[GangReplica, ...]


#: The next step; None: nothing to do now.
Step = Ask | Notice | Join | Kill | Clear | None


class InPlaceResize:
    """One resize of a running attempt.

    Args:
        generation: number of the generation that runs.
        staying: replicas that are members before and after.
        leaving: replicas that are members before and not after.
        nodes: where new replicas are to start; the caller that carries out ``Join`` fills in ``joining``.
        grace_s: seconds that leaving replicas get before they are killed.
        now: the present time.
    """

    def __init__(
        self,
        generation: int,
        *,
        staying: Sequence[GangReplica],
        leaving: Sequence[GangReplica],
        nodes: Sequence[str],
        grace_s: float,
        now: float,
    ) -> None:
        self.stage: Stage = "asking"
        self.generation, self.staying, self.leaving = generation, list(staying), list(leaving)
        self.nodes, self.joining = list(nodes), list[GangReplica]()
        self._grace_s = grace_s
        #: Members that left and may have remaining processes; None: some still run.
        self._remains: set[str] | None = None
        self._first_generation = generation
        self._ways: list[list[GangReplica]] = []
        self._until, self._look_at = now + _ANSWER_S, now
        self._asked = False

    @property
    def members(self) -> list[GangReplica]:
        """Members after the resize, in order of rank."""
        return [*self.staying, *self.joining]

    @property
    def notified(self) -> bool:
        """Whether replicas were notified; from then on the resize cannot be abandoned without a restart."""
        return self.generation > self._first_generation

    @property
    def next_at(self) -> float | None:
        """Time at which the resize must be advanced even without an answer."""
        if self.stage in ("done", "failed"):
            return None
        if self.stage == "leaving":
            return self._until if self._remains is None else None
        return self._until if self._asked else min(self._look_at, self._until)

    def look(self, now: float, running: Collection[str]) -> Step:
        """Advances the resize to ``now``; ``running`` are members whose process has not ended."""
        if self.stage in ("done", "failed"):
            return None
        if self.stage == "leaving":
            return self._see_off(now, running)
        if now >= self._until:
            self.stage = "failed"
            return None
        return None if self._asked or now < self._look_at else self._ask(now)

    def gone(self, members: Iterable[str]) -> None:
        """Notes that no process of these members is left."""
        if self.stage == "leaving" and self._remains is not None:
            self._remains -= set(members)
            if not self._remains:
                self.stage = "done"

    def answered(self, ok: bool, there: bool, now: float) -> Step:
        """Notes the store's answer to the last question."""
        self._asked = False
        if self.stage in ("leaving", "done", "failed"):
            return None
        if not ok:
            self.stage = "failed"
        elif self.stage == "asking":
            if there:
                self.stage, self._until = "joining", now + _JOIN_S
                return Join(self.generation + 1)
            self.stage = "failed"  # a replica that does not listen yet loses nothing by a restart
        elif there and self.stage == "joining":
            self._ways = generations(self.staying, self.leaving, self.joining)
            return self._notify(now)
        elif there and self._ways:
            return self._notify(now)
        elif there:
            self.stage, self._until = "leaving", now + self._grace_s
        return None

    def _see_off(self, now: float, running: Collection[str]) -> Step:
        left = tuple(replica for replica in self.leaving if replica.name in running)
        if left:
            if now < self._until:
                return None
            self._until = now + KILL_AGAIN_S
            return Kill(left)
        if not self.leaving:
            self.stage = "done"
        elif self._remains is None:
            self._remains = {replica.name for replica in self.leaving}
            return Clear(tuple(self.leaving))
        return None

    def _ask(self, now: float) -> Ask:
        self._asked, self._look_at = True, now + _LOOK_AGAIN_S
        if self.stage == "asking":
            return Ask((f"listening{self.generation}",))
        if self.stage == "joining":
            return Ask(tuple(f"ready{self.generation + 1}/{replica.name}" for replica in self.joining))
        return Ask((f"running{self.generation}",))

    def _notify(self, now: float) -> Notice:
        members = self._ways.pop(0)
        self.generation += 1
        self.stage, self._asked, self._until = "moving", True, now + _MOVE_S
        order = list(dict.fromkeys(replica.seat.node for replica in members))
        return Notice(
            generation=self.generation,
            members=tuple(replica.name for replica in members),
            nodes=tuple(order.index(replica.seat.node) for replica in members),
        )

"""One resize in place, step by step (docs/agent-protocol.md). It never waits: the keeper calls ``pursue`` again and again.

asking (can it?) -> joining (newcomers get ready beside the others) -> moving (a notice, and the next generation runs) -> done.
Until the notice nothing has happened to the job. Whatever goes wrong or takes too long: failed, and the job is restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from coadapt.cluster.membership import generations
from coadapt.cluster.replica import Replica
from coadapt.cluster.stores import Store, StoreAnswer

#: How long newcomers may take to get ready (others train meanwhile), how long a generation to begin, and an answer to come.
_JOIN_S, _MOVE_S, _ANSWER_S = 900.0, 180.0, 60.0
_LOOK_AGAIN_S = 0.05

Stage = Literal["asking", "joining", "moving", "done", "failed"]


class InPlace:
    """``meeting`` names the attempt's part of the store. ``start`` starts the newcomers."""

    def __init__(
        self,
        store: Store,
        meeting: dict[str, str | int],
        generation: int,
        *,
        staying: Sequence[Replica],
        leaving: Sequence[Replica],
        start: Callable[[int], list[Replica]],
        now: float,
    ) -> None:
        self.stage: Stage = "asking"
        self.generation, self.staying, self.leaving = generation, list(staying), list(leaving)
        self.joining: list[Replica] = []
        self._store, self._meeting, self._start = store, meeting, start
        self._ways: list[list[Replica]] = []
        self._until, self._look_at = now + _ANSWER_S, now
        self._asked = False
        self._ask([f"listening{generation}"])

    @property
    def members(self) -> list[Replica]:
        """Who is there when it is done, in order of rank."""
        return [*self.staying, *self.joining]

    def pursue(self, now: float) -> None:
        """Goes on as far as it can."""
        if self.stage in ("done", "failed"):
            return
        if self._store.gone or now >= self._until:
            self.stage = "failed"
        elif not self._asked and now >= self._look_at:
            self._look_at = now + _LOOK_AGAIN_S
            if self.stage == "asking":
                self._begin(now)
            elif self.stage == "joining":
                self._ask([f"ready{self.generation + 1}/{replica.member}" for replica in self.joining])
            else:
                self._ask([f"running{self.generation}"])

    # -- what is answered ----------------------------------------------------------------------------

    def _ask(self, keys: list[str]) -> None:
        self._asked = True
        self._store.ask({"ask": "there", "keys": keys, **self._meeting}, self._answered)

    def _answered(self, answer: StoreAnswer) -> None:
        self._asked = False
        if not answer.ok:
            self.stage = "failed"
        elif self.stage == "asking":
            # a replica that does not listen yet has nothing to lose by a restart
            self.stage = "asking" if answer.there else "failed"
        elif self.stage == "joining" and answer.there:
            self._ways = generations(self.staying, self.leaving, self.joining)
            self._notify()
        elif self.stage == "moving" and answer.there:
            if self._ways:
                self._notify()
            else:
                self.stage = "done"

    def _begin(self, now: float) -> None:
        self.stage, self._until = "joining", now + _JOIN_S
        self.joining = self._start(self.generation + 1)

    def _notify(self) -> None:
        members = self._ways.pop(0)
        self.generation += 1
        order = list(dict.fromkeys(replica.seat.node for replica in members))
        notice = {
            "kind": "resize",
            "generation": self.generation,
            "members": [replica.member for replica in members],
            "nodes": [order.index(replica.seat.node) for replica in members],
        }
        self.stage, self._asked = "moving", True
        self._until = self._look_at + _MOVE_S
        self._store.ask({"ask": "notify", "notice": notice, **self._meeting}, self._notified)

    def _notified(self, answer: StoreAnswer) -> None:
        self._asked = False
        if not answer.ok:
            self.stage = "failed"

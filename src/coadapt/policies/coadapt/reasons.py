"""Reasons for decisions: why a job has its GPUs, or none, in one sentence with numbers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coadapt.model import Reason
from coadapt.policies.coadapt.offers import Offers
from coadapt.units import format_duration

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]
#: Note about a job whose curve was dropped.
NOT_FINITE = "its measurements give no finite speed and are not used"
_BEYOND = np.iinfo(np.int_).max


class Explainer:
    """States the reasons of one decision; values that several reasons need are computed once.

    Args:
        offers: the options of the decision.
        value: value[j, o] that was maximised.
        choice: index of the option chosen for each job.
        allowed: ``value`` after quotas removed options; None: no quotas.
    """

    def __init__(self, offers: Offers, value: Floats, choice: Ints, allowed: Floats | None = None) -> None:
        self._offers, self._value, self._choice = offers, value, choice
        self._allowed = value if allowed is None else allowed
        used = np.bincount(
            offers.kind[choice], weights=offers.size[choice], minlength=len(offers.capacity)
        ).astype(np.int_)
        self._free = np.array(offers.capacity) - used
        self._givers: dict[tuple[int, int], list[tuple[int, float]]] = {}
        runs = offers.goodput > 0
        #: Whether a job can run at all, and the least it can run on.
        self._runs: list[bool] = np.asarray(runs.any(axis=1)).tolist()
        self._least = np.where(runs, offers.size, _BEYOND).argmin(axis=1).tolist()
        larger = runs & (offers.kind == offers.kind[choice][:, None])
        larger &= offers.size > offers.size[choice][:, None]
        #: The next larger option of each job on the type it has; -1: there is none.
        self._next = np.where(
            larger.any(axis=1), np.where(larger, offers.size, _BEYOND).argmin(axis=1), -1
        ).tolist()

    def reason(self, row: int, note: str = "") -> Reason:
        """Why job ``row`` has the option chosen for it."""
        offers, option = self._offers, int(self._choice[row])
        gpus = int(offers.size[option])
        left_s = float(offers.left_s[row])
        if not gpus:
            return self._waiting(row, note)
        if offers.unknown[row]:
            text = f"on {_gpus(gpus)}: nothing is known about it yet, this is to measure it"
            return Reason(code="explore", text=_with(text, note), numbers={"gpus": gpus})
        speedup = float(offers.goodput[row, option] / offers.least[row])
        numbers = {"gpus": gpus, "speedup": round(speedup, 3)}
        if math.isfinite(left_s):
            numbers["left_s"] = round(left_s / max(speedup, 1e-9), 1)
        more = self._more(row)
        if more is None:
            text = f"runs on {gpus}: it can use no more"
            return Reason(code="fastest", text=_with(text, note), numbers=numbers)
        larger, gain = more
        add = int(offers.size[larger]) - gpus
        numbers |= {"next_gpus": gpus + add, "next_gain": round(gain, 4)}
        if gain <= 0:
            text = f"runs on {gpus}, not {gpus + add}: the next {add} would not speed it up"
            return Reason(code="saturated", text=_with(text, note), numbers=numbers)
        if self._over_quota(row, larger):
            text = f"runs on {gpus}, not {gpus + add}: the quota of its user or team allows no more"
            return Reason(code="quota", text=_with(text, note), numbers=numbers)
        text = f"runs on {gpus}, not {gpus + add}: the next {add} would speed it up by {gain:.0%}"
        loser = self._loser(row, larger)
        if loser is not None:
            other, loss = loser
            numbers["others_loss"] = round(loss, 4)
            text += f" and cost {offers.jobs[other].id} {loss:.0%}"
        return Reason(code="balanced", text=_with(text, note), numbers=numbers)

    def _waiting(self, row: int, note: str) -> Reason:
        offers = self._offers
        if not self._runs[row] and offers.expected[row].any():
            text = "waits: jobs that stay as they are have the GPUs it needs"
            return Reason(code="held", text=_with(text, note))
        if not self._runs[row]:
            return Reason(code="no-place", text=_with("waits: no GPUs of a kind it can use are there", note))
        least = self._least[row]
        loser = self._loser(row, least)
        numbers = {"needs_gpus": float(offers.size[least])}
        if self._over_quota(row, least):
            text = f"waits for {_gpus(int(offers.size[least]))}: the quota of its user or team is used up"
            return Reason(code="quota", text=_with(text, note), numbers=numbers)
        text = f"waits for {_gpus(int(offers.size[least]))}: others finish more useful work with them"
        if loser is not None:
            other, loss = loser
            numbers["others_loss"] = round(loss, 4)
            text += f" (the least would cost {offers.jobs[other].id} {loss:.0%})"
        return Reason(code="outbid", text=_with(text, note), numbers=numbers)

    def _more(self, row: int) -> tuple[int, float] | None:
        """The next larger option of the job on the same type, and what it would gain; None if there is none."""
        offers, option = self._offers, int(self._choice[row])
        there = self._next[row]
        if there < 0:
            return None
        return there, float(offers.goodput[row, there] / offers.goodput[row, option] - 1)

    def _over_quota(self, row: int, option: int) -> bool:
        return bool(np.isfinite(self._value[row, option]) and not np.isfinite(self._allowed[row, option]))

    def _loser(self, row: int, wanted: int) -> tuple[int, float] | None:
        """Who would lose least by giving up what job ``row`` lacks for ``wanted``, and how much slower it would be.

        None if nobody has to, for so many are free, or nobody could alone.
        """
        offers = self._offers
        kind = int(offers.kind[wanted])
        option = int(self._choice[row])
        has = int(offers.size[option]) if offers.kind[option] == kind else 0
        need = int(offers.size[wanted] - has - self._free[kind])
        if need <= 0:
            return None
        if (kind, need) not in self._givers:
            self._givers[kind, need] = self._giving(kind, need)
        return next((giver for giver in self._givers[kind, need] if giver[0] != row), None)

    def _giving(self, kind: int, need: int) -> list[tuple[int, float]]:
        """The two jobs that lose least worth by giving up so many GPUs of a type, and how much slower each would be."""
        offers, rows = self._offers, np.arange(len(self._choice))
        held = np.where(offers.kind[self._choice] == kind, offers.size[self._choice], 0)
        keeps = (offers.size <= (held - need)[:, None]) & ((offers.kind == kind) | (offers.size == 0))
        below = np.where(keeps & np.isfinite(self._value), offers.size, -1).argmax(axis=1)
        loss = self._value[rows, self._choice] - self._value[rows, below]
        loss = np.where(held >= need, loss, np.inf)
        givers = []
        for other in np.argsort(loss, kind="stable")[:2].tolist():
            if np.isfinite(loss[other]):
                now, then = offers.goodput[other, self._choice[other]], offers.goodput[other, below[other]]
                givers.append((other, float(1 - then / now) if now > 0 else 0.0))
        return givers


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _with(text: str, note: str) -> str:
    return f"{text}; {note}" if note else text


def deadline_note(late_s: float) -> str:
    """Returns the note about a deadline that cannot be met."""
    return f"its deadline cannot be met: {format_duration(late_s)} late even on all it can use"

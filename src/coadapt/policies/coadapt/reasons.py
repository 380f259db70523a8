"""Reasons for decisions: why a job has its GPUs, or none, in a few sentences with numbers.

The first sentence says what the decision gives to the job, the others why. A reader that shows the job while it is still
starting or resizing leaves out the first one. A clause that names another job stands behind a full stop or a semicolon:
it is left out once that job has ended.
"""

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
NOT_FINITE = "Its measurements give no finite speed and are not used."
_BEYOND = np.iinfo(np.int_).max
_WORDS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 6: "Six", 8: "Eight"}


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
            text = f"Running on {_gpus(gpus)} while its speed is measured."
            return Reason(code="explore", text=_with(text, note), numbers={"gpus": gpus})
        speedup = float(offers.goodput[row, option] / offers.least[row])
        numbers = {"gpus": gpus, "speedup": round(speedup, 3)}
        if math.isfinite(left_s):
            numbers["left_s"] = round(left_s / max(speedup, 1e-9), 1)
        more = self._more(row)
        if more is None:
            text = f"Running on {_gpus(gpus)}, the most it can use."
            return Reason(code="fastest", text=_with(text, note), numbers=numbers)
        larger, gain = more
        add = int(offers.size[larger]) - gpus
        numbers |= {"next_gpus": gpus + add, "next_gain": round(gain, 4)}
        text = f"Running on {gpus} of up to {_gpus(self._most(row))}."
        if gain <= 0:
            text = f"{text} {_more(add)} would not make it faster."
            return Reason(code="saturated", text=_with(text, note), numbers=numbers)
        if self._over_quota(row, larger):
            text = f"{text} The quota of its user or team allows no more."
            return Reason(code="quota", text=_with(text, note), numbers=numbers)
        text = f"{text} {_more(add)} would make it {gain:.0%} faster"
        loser = self._loser(row, larger)
        if loser is None:
            text += "."
        else:
            other, loss = loser
            numbers["others_loss"] = round(loss, 4)
            name = offers.jobs[other].id
            text += (
                f" but would stop {name}." if _stops(loss) else f" but would make {name} {loss:.0%} slower."
            )
        return Reason(code="balanced", text=_with(text, note), numbers=numbers)

    def _waiting(self, row: int, note: str) -> Reason:
        offers = self._offers
        if not self._runs[row] and offers.expected[row].any():
            text = "Waiting for GPUs. Jobs that cannot be moved now hold the GPUs it needs."
            return Reason(code="held", text=_with(text, note))
        if not self._runs[row]:
            text = "Waiting for GPUs. No node that accepts jobs has GPUs of a type it can use."
            return Reason(code="no-place", text=_with(text, note))
        least = self._least[row]
        loser = self._loser(row, least)
        needs = int(offers.size[least])
        numbers = {"needs_gpus": float(needs)}
        if self._over_quota(row, least) and note:
            # it is held back by what the note says
            return Reason(code="held", text=_with(f"Waiting for {_gpus(needs)}.", note), numbers=numbers)
        if self._over_quota(row, least):
            text = f"Waiting for {_gpus(needs)}. The quota of its user or team is used up."
            return Reason(code="quota", text=text, numbers=numbers)
        text = f"Waiting for {_gpus(needs)}. Running jobs make better use of {'it' if needs == 1 else 'them'}"
        if loser is None:
            text += "."
        else:
            other, loss = loser
            numbers["others_loss"] = round(loss, 4)
            cost = "have to stop entirely" if _stops(loss) else f"be {loss:.0%} slower"
            text += f"; the cheapest to displace, {offers.jobs[other].id}, would {cost}."
        return Reason(code="outbid", text=_with(text, note), numbers=numbers)

    def _more(self, row: int) -> tuple[int, float] | None:
        """The next larger option of the job on the same type, and what it would gain; None if there is none."""
        offers, option = self._offers, int(self._choice[row])
        there = self._next[row]
        if there < 0:
            return None
        return there, float(offers.goodput[row, there] / offers.goodput[row, option] - 1)

    def _most(self, row: int) -> int:
        """The largest size at which the job runs on the type it has."""
        offers = self._offers
        same = (offers.goodput[row] > 0) & (offers.kind == offers.kind[int(self._choice[row])])
        return int(offers.size[same].max())

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


def _more(count: int) -> str:
    return f"{_WORDS.get(count, str(count))} more"


def _stops(loss: float) -> bool:
    return round(loss, 2) >= 1


def _with(text: str, note: str) -> str:
    return f"{text} {note}" if note else text


def started(gpus: int) -> Reason:
    """Returns the reason of a job that starts on GPUs that were reserved for it."""
    text = f"Running on {_gpus(gpus)} reserved for it, because it had waited too long."
    return Reason(code="reserved", text=text, numbers={"gpus": float(gpus)})


def deadline_note(late_s: float) -> str:
    """Returns the note about a deadline that cannot be met."""
    return (
        f"Its deadline cannot be met: it would be {format_duration(late_s)} late even on all GPUs it can use."
    )

"""A job's plan under prices: what ``_bound_job`` found the cost of, carried out, with its GPU time slot by slot.

A plan is feasible in the relaxed world of the bound: it mixes options within a slot and does exactly the work of every
leg. Its cost is therefore an upper bound on the job's least cost at any prices, which is what the search for
prices needs of it; that it is near the least one makes the search quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.report._bound_job import Priced
from coadapt.report._bound_legs import FloatArray, Leg


class Plan(NamedTuple):
    """When a job ends, and its GPU-seconds by GPU type and slot."""

    ends_at: float
    gpu_s: FloatArray


def plan(priced: Sequence[Priced], times: FloatArray, kinds: int, begins_at: float) -> Plan:
    """A plan for a job that may begin at ``begins_at``."""
    made = _Making(times, np.zeros((kinds, len(times) - 1)), begins_at)
    for stage in priced:
        made.go_through(stage)
    return Plan(made.at, made.gpu_s)


@dataclass(slots=True)
class _Making:
    times: FloatArray
    gpu_s: FloatArray
    at: float

    def go_through(self, stage: Priced) -> None:
        """One leg, begun now."""
        leg, slots = stage.leg, len(self.times) - 1
        if self.at >= self.times[-1]:
            self._hurry(leg, 1.0)
            return
        first = int(np.searchsorted(self.times, self.at, side="right")) - 1
        row, ends = self._choose(stage, first)
        last = min(ends, slots - 1)
        spans = np.diff(self.times[first : last + 2])
        spans[0] = self.times[first + 1] - self.at
        option = stage.option[:, first : last + 1]
        rate = np.append(leg.rate, 0.0)[option]
        done = rate @ spans
        if ends == slots and done[row] <= leg.work:
            self._use(leg, option[row], first, spans)
            self.at = float(self.times[-1])
            self._hurry(leg, 1.0 - float(done[row]) / leg.work)
            return
        if done[row] > leg.work and rate[row, -1] > 0:
            # it ends within the last slot, or at its start
            before = done[row] - rate[row, -1] * spans[-1]
            spans[-1] = max(leg.work - before, 0.0) / rate[row, -1]
            done = rate @ spans
        self._mix(leg, option, first, spans, done)

    def _choose(self, stage: Priced, first: int) -> tuple[int, int]:
        """The worth, and the slot it ends in, that cost least from now."""
        part = (self.at - self.times[first]) / (self.times[first + 1] - self.times[first])
        earned = stage.earned[:, first] * (1.0 - part) + stage.earned[:, first + 1] * part
        costs = earned[:, None] + stage.ahead[:, first:]
        rows = costs.argmax(axis=0)
        ends = int(costs[rows, np.arange(len(rows))].argmin())
        return int(rows[ends]), first + ends

    def _mix(
        self, leg: Leg, option: npt.NDArray[np.int16], first: int, spans: FloatArray, done: FloatArray
    ) -> None:
        """Rows are in order of worth, so more and more is done: two neighbours mixed do the very work of the leg."""
        high = int(np.searchsorted(done, leg.work * (1.0 - 1e-12)))
        if high == len(done):
            self._use(leg, option[-1], first, spans)
            self.at += float(spans.sum())
            self._hurry(leg, 1.0 - float(done[-1]) / leg.work)
            return
        less = float(done[high - 1]) if high else 0.0
        share = min((leg.work - less) / (float(done[high]) - less), 1.0)
        self._use(leg, option[high], first, spans * share)
        if high:
            self._use(leg, option[high - 1], first, spans * (1.0 - share))
        self.at += float(spans.sum())

    def _hurry(self, leg: Leg, share: float) -> None:
        """A share of the leg as fast as it goes; after the last slot nobody counts GPUs."""
        fastest = int(leg.rate.argmax())
        left_s = share * leg.work / float(leg.rate[fastest])
        while left_s > 0 and self.at < self.times[-1]:
            slot = int(np.searchsorted(self.times, self.at, side="right")) - 1
            span_s = min(left_s, float(self.times[slot + 1]) - self.at)
            self.gpu_s[leg.kind[fastest], slot] += leg.gpus[fastest] * span_s
            left_s -= span_s
            self.at = float(self.times[slot + 1]) if left_s > 0 else self.at + span_s
        self.at += left_s

    def _use(self, leg: Leg, option: npt.NDArray[np.int16], first: int, seconds: FloatArray) -> None:
        busy = option >= 0
        slots = np.arange(first, first + len(seconds))[busy]
        chosen = option[busy]
        np.add.at(self.gpu_s, (leg.kind[chosen], slots), leg.gpus[chosen] * seconds[busy])

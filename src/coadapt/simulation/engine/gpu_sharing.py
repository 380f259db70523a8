"""Sharing of GPUs in the simulator: who is on the same GPUs, and how fast each of them goes.

A training that knows the rates of pairs (``stepped_training``) looks them up by its partner's profile. Any other job goes at
``ALONE_SHARE`` of its own speed, whoever the partner is: the median over the 1,881 pairs of models that Gavel's authors
measured to run together on K80, P100 and V100 GPUs (Narayanan et al., OSDI 2020), of rate over rate alone. In 80% of these
pairs the share is within the interval, and 63% of all measured pairs did not fit the memory of the GPU together: what
a simulation says about sharing without a table of pairs is a guess of that width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coadapt.model import Interval, JobSpec, Placement
from coadapt.simulation.engine.interference import NONE, Slowdown

#: Speed beside one other job over the speed alone, where the pair was not measured, with its 80% interval.
ALONE_SHARE = Interval(value=0.58, low=0.38, high=0.84)


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """Speed of jobs on the same GPUs; ``alone_share`` for pairs that nobody measured."""

    alone_share: float = ALONE_SHARE.value

    def slowdown(self, spec: JobSpec, gpu_type: str, beside: Sequence[JobSpec]) -> Slowdown:
        """Returns the slowdown of a job by those on its GPUs."""
        if not beside:
            return NONE
        partner = beside[0].profile if len(beside) == 1 else ""
        return Slowdown(rate=self.alone_share ** len(beside), partner=partner)


def joined(one: Slowdown, other: Slowdown) -> Slowdown:
    """Both at once."""
    if other is NONE:
        return one
    return Slowdown(
        rate=one.rate * other.rate, sync=one.sync * other.sync, partner=other.partner or one.partner
    )


class Partners:
    """Which jobs are on which shared GPUs, kept as placements change."""

    def __init__(self) -> None:
        self._on: dict[tuple[str, str], dict[str, None]] = {}
        self._keys: dict[str, tuple[tuple[str, str], ...]] = {}

    def knows(self, job: str) -> bool:
        """Whether the job is on shared GPUs."""
        return job in self._keys

    def move(self, job: str, placement: Placement) -> list[str]:
        """The job runs on ``placement`` now; returns the jobs whose partners may have changed, itself first."""
        touched: dict[str, None] = {job: None}
        for key in self._keys.pop(job, ()):
            members = self._on[key]
            members.pop(job, None)
            touched.update(members)
            if not members:
                del self._on[key]
        keys = tuple((slot.node, slot.group) for slot in placement.slots if slot.group)
        for key in keys:
            members = self._on.setdefault(key, {})
            touched.update(members)
            members[job] = None
        if keys:
            self._keys[job] = keys
        return list(touched)

    def of(self, job: str) -> list[str]:
        """The jobs on the same GPUs, in the order they came."""
        found: dict[str, None] = {}
        for key in self._keys.get(job, ()):
            found.update(self._on[key])
        found.pop(job, None)
        return list(found)

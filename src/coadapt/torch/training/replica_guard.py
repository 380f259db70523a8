"""The guard: replicas compare parameters, learning rates and counters, and end the attempt if they have parted.

Replicas of one job hold the same parameters, bit for bit, after every step. A script can break that without a word: it unfreezes a layer
behind our back, sets a rate from one replica's numbers, skips a step on one of them. ``ReplicaGuard`` compares checksums at
every checkpoint and every N steps, in one message; N follows from what a check costs. Differences of rounding, as
between two kinds of processors, are repaired from the first replica and logged once.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.errors import CoadaptError
from coadapt.torch.elastic.process_group import Group

log = logging.getLogger("coadapt.torch")
#: Share of step time for checks; steps between two checks, least and most.
_BUDGET, _LEAST, _MOST = 0.004, 10, 2000
#: In the first so many steps of a generation checks are at most so many steps apart.
_EARLY, _EARLY_GAP = 50, 20
_MASK = 2**62 - 1
#: Relative differences of parameters that are rounding, by bits of the type.
_ROUNDING = {64: 1e-10, 32: 1e-5}

#: Whole numbers of so many bytes.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}

_CAUSES = {
    "parameter": "a step that one replica made and another did not, parameters changed by hand with one replica's numbers, or a loss "
    "computed past the prepared model",
    "learning rate": "a rate set from one replica's numbers or from a counter of the script: use what job.report() returns, and job.step",
    "job.state": "a value from one replica's numbers: use what job.report() returns",
    "data": "data divided by rank: give every replica all of it, the agent divides",
    "progress": "a step that one replica made and another did not",
}


class PartedError(CoadaptError):
    """Replicas of a job have different parameters, rates or counters."""


class ReplicaGuard:
    """Compares ``tensors`` (by name) and ``facts`` (by "kind: name") of all replicas. All replicas call it after the same steps."""

    def __init__(
        self,
        tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        facts: Callable[[], Mapping[str, str]],
        *,
        identical_draws: Callable[[], None],
    ) -> None:
        """``identical_draws`` is called when all replicas are about to draw the same random numbers."""
        self._tensors, self._facts, self._identical_draws = tensors, facts, identical_draws
        #: The step after which replicas compare next.
        self.due_at: float = math.inf
        self.checks = 0
        self._agreed_at = self._began_at = 0
        self._cost_s = 0.0
        self._warned = False

    def start(self, step: int, *, replicas: int) -> None:
        """A generation of ``replicas`` begins after ``step``: it starts from one state."""
        self._agreed_at = self._began_at = step
        self.due_at = step + 2 if replicas > 1 else math.inf

    def check(self, group: Group, step: int, *, cost_clock: Callable[[], float], step_s: float) -> None:
        """Compare now, after ``step``. Raises ``PartedError`` on all replicas if they differ.

        Args:
            group: The replicas.
            step: Committed steps.
            cost_clock: Clock of what a check costs.
            step_s: Seconds of a step by that clock; 0 if not known.
        """
        if group.place.replicas == 1:
            return
        began = cost_clock()
        facts, named = self._facts(), list(self._tensors())
        sums = [*checksums([tensor for _, tensor in named]), _text_sum(facts)]
        draws = checksums([torch.get_rng_state()])[0]
        times_ns = [round(self._cost_s * 1e9), round(step_s * 1e9)]
        message = torch.tensor([*sums, draws, *times_ns], dtype=torch.int64)
        both = torch.cat([message, -message])
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        most, least = both[: len(message)], -both[len(message) :]
        different = (most[:-2] != least[:-2]).tolist()
        self.checks += 1
        if not different.pop():
            self._identical_draws()
        if any(different):
            self._explain(group, step, facts, named, different)
        self._agreed_at = step
        # the slowest replica's numbers, those of the check before: the same on all
        self._schedule(step, cost_s=float(most[-2]), step_s=float(most[-1]))
        self._cost_s = cost_clock() - began

    def _schedule(self, step: int, *, cost_s: float, step_s: float) -> None:
        wanted = cost_s / (_BUDGET * step_s) if step_s > 0 else _LEAST
        gap = min(max(wanted, _LEAST), _MOST)
        if step - self._began_at < _EARLY:
            gap = min(gap, _EARLY_GAP)
        self.due_at = step + math.ceil(gap)

    # -- when replicas differ -----------------------------------------------------------------------------------

    def _explain(
        self,
        group: Group,
        step: int,
        facts: Mapping[str, str],
        named: list[tuple[str, Tensor]],
        different: list[bool],
    ) -> None:
        told = self._told_facts(group, facts) if different[-1] else ""
        where = [number for number, parted in enumerate(different[:-1]) if parted]
        if not told and where:
            worst = max(self._distance(group, named[number][1]) for number in where)
            first = named[where[0]][0]
            if worst == 0.0:
                self._warn(group, first)
                return
            count = f" and {len(where) - 1} more" if len(where) > 1 else ""
            told = f"parameter {first}{count} (relative difference {worst:.1e})"
        kind = next((kind for kind in _CAUSES if told.startswith(kind)), "parameter")
        raise PartedError(
            f"replicas have parted: {told}; they agreed after step {self._agreed_at} and differ after step {step}. "
            f"Likely: {_CAUSES[kind]}"
        )

    def _told_facts(self, group: Group, facts: Mapping[str, str]) -> str:
        first: dict[str, str] = group.from_first(dict(facts))
        own = ""
        for name in [*first, *(n for n in facts if n not in first)]:
            if first.get(name) != facts.get(name):
                here, there = facts.get(name, "nothing"), first.get(name, "nothing")
                own = f"{name} is {there} on replica 0 and {here} on replica {group.place.rank}"
                break
        found = group.to_first(own)
        return str(group.from_first(next((text for text in found or () if text), "")))

    def _distance(self, group: Group, tensor: Tensor) -> float:
        """The largest relative difference from the first replica's tensor, over all replicas; 0 if it is rounding, which is repaired."""
        first = tensor.detach().cpu().clone()
        dist.broadcast(first, src=0)
        own = tensor.detach().cpu()
        scale = float(first.abs().max()) or 1.0
        apart = float((own - first).abs().max()) / scale
        rounding = _ROUNDING.get(tensor.element_size() * 8, 1e-2)
        values = [0.0] * group.place.replicas
        values[group.place.rank] = apart if math.isfinite(apart) else 1.0
        worst = max(group.sum(values))
        if worst > rounding:
            return worst
        with torch.no_grad():
            tensor.copy_(first)
        return 0.0

    def _warn(self, group: Group, name: str) -> None:
        if not self._warned and group.place.first:
            log.warning(
                "parameters of replicas differ by rounding, first %s: other processors? Repaired from the first replica",
                name,
            )
        self._warned = True


def checksums(tensors: Iterable[Tensor]) -> list[int]:
    """The sum of the bits of each tensor, as whole numbers: any change of a value changes it."""
    found = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        size = flat.element_size()
        if size < 8 and flat.numel() * size % 8 == 0 and flat.storage_offset() * size % 8 == 0:
            size = 8
        found.append(flat.view(_WORDS[size]).sum(dtype=torch.int64))
    return [int(each) & _MASK for each in found]


def _text_sum(facts: Mapping[str, str]) -> int:
    return zlib.crc32("\n".join(f"{name}={value}" for name, value in facts.items()).encode())


def described(value: Any) -> str:
    """A value of the script as text: the same text for the same value."""
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {checksums([value])[0]:x}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {described(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(described(each) for each in value) + "]"
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {zlib.crc32(np.ascontiguousarray(value).tobytes()):x}"
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value)
    return type(value).__name__

"""A paced device: each step lasts as long as a profile says, so that virtual GPUs on few cores behave like real ones.

``COADAPT_PACE`` names a JSON file: ``{"params": {step-time parameters}}`` as ``prediction.step_time._base`` fits them, or
``{"seconds": {"64": 0.1, "1024": 0.1}}``, a backward pass by examples per replica, in between interpolated.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coadapt.errors import InputError
from coadapt.prediction.step_time.node_aware import AwareParams
from coadapt.prediction.step_time.pollux import StepTimeParams
from coadapt.torch.elastic.process_group import Place
from coadapt.torch.training.step_plan import Step

log = logging.getLogger(__name__)
#: Share of steps that may be too slow before a warning.
_LATE = 0.05
_ENOUGH = 20


class PaceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON file: see the module."""

    params: StepTimeParams | None = None
    aware: AwareParams | None = None
    seconds: dict[str, float] = {}


class Pace:
    """Makes backward passes of one replica last as long as the profile says."""

    def __init__(self, file: PaceFile, place: Place) -> None:
        self._file, self._place = file, place
        self._sizes = np.log([float(size) for size in file.seconds]) if file.seconds else np.empty(0)
        order = np.argsort(self._sizes)
        self._sizes, self._seconds = self._sizes[order], np.array(list(file.seconds.values()))[order]
        self._count = self._late = 0
        self._warned = False

    def moved(self, place: Place) -> None:
        """The replicas have changed; this one is at ``place`` now."""
        self._place = place

    def seconds(self, examples: int, *, last: bool) -> float:
        """How long a backward pass lasts by the profile; the last one of a step includes synchronisation."""
        params = self._file.params or self._file.aware
        if params is None:
            return float(np.interp(np.log(examples), self._sizes, self._seconds))
        place = self._place
        if last:
            return float(params.step_time(place.nodes, place.replicas, examples))
        return float(params.grad_time(place.nodes, place.replicas, examples))

    def sleep(self, took: float, step: Step, *, last: bool) -> float:
        """Sleep until the pass has lasted long enough, and return how long it lasted.

        ``took`` is what it really took, ``last``: it is the last pass of ``step``.
        """
        expected = self.seconds(step.pieces[-1].end - step.pieces[-1].begin, last=last)
        self._count += 1
        if took > 1.05 * expected:
            self._late += 1
            self._warn(took, expected)
        else:
            time.sleep(expected - took if took < expected else 0.0)
        return max(took, expected)

    def computing(self, took: float, step: Step) -> float:
        """The computing part of a paced pass that really computed for ``took``: all that the profile adds but synchronisation."""
        return max(took, self.seconds(step.pieces[-1].end - step.pieces[-1].begin, last=False))

    def _warn(self, took: float, expected: float) -> None:
        if not self._warned and self._count >= _ENOUGH and self._late > _LATE * self._count:
            self._warned = True
            log.warning(
                "this replica is slower than the profile of COADAPT_PACE: a pass took %.3g s instead of %.3g s",
                took,
                expected,
            )


def load(path: str, place: Place) -> Pace:
    """Read the profile in a file."""
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=PaceFile)
    except OSError as error:
        raise InputError(f"cannot read the profile {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not a profile of a paced device: {error}") from error
    return make(file, place, path)


def make(file: PaceFile, place: Place, name: str = "the profile") -> Pace:
    """Check ``file`` and make a pace of it; ``name`` is what errors call it."""
    sizes: list[Any] = [size for size in file.seconds if not (size.isdigit() and int(size) > 0)]
    if sizes or any(not (0 < s < 3600) for s in file.seconds.values()):
        raise InputError(
            f"{name}: the keys of seconds must be whole numbers of examples, its values times of up to an hour"
        )
    if not file.seconds and file.params is None and file.aware is None:
        raise InputError(f"{name} has neither params nor seconds")
    return Pace(file, place)

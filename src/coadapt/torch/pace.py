"""A paced device: each step lasts as long as a profile says, so that virtual GPUs on few cores behave like real ones.

``COADAPT_PACE`` names a JSON file: ``{"params": {step-time parameters}}`` as ``predict.step_time`` fits them, or
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
from coadapt.predict import step_time
from coadapt.predict.step_aware import AwareParams
from coadapt.predict.step_published import StepTimeParams
from coadapt.torch.place import Place
from coadapt.torch.steps import Step

log = logging.getLogger(__name__)
#: Share of steps that may come too late before the replica says that it cannot keep the pace.
_LATE = 0.05
_ENOUGH = 20


class PaceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module."""

    params: StepTimeParams | None = None
    aware: AwareParams | None = None
    seconds: dict[str, float] = {}


class Pace:
    """Makes backward passes of one replica last as long as they should."""

    def __init__(self, file: PaceFile, place: Place) -> None:
        self._file, self._place = file, place
        self._sizes = np.log([float(size) for size in file.seconds]) if file.seconds else np.empty(0)
        order = np.argsort(self._sizes)
        self._sizes, self._seconds = self._sizes[order], np.array(list(file.seconds.values()))[order]
        self._count = self._late = 0
        self._said = False

    def moved(self, place: Place) -> None:
        """The replicas have changed."""
        self._place = place

    def seconds(self, examples: int, *, last: bool) -> float:
        """What a backward pass should last; the last of a step has the synchronisation in it."""
        params = self._file.params or self._file.aware
        if params is None:
            return float(np.interp(np.log(examples), self._sizes, self._seconds))
        place = self._place
        if last:
            return float(step_time.step_time(params, place.nodes, place.replicas, examples))
        return float(step_time.grad_time(params, place.nodes, place.replicas, examples))

    def sleep(self, took: float, step: Step, *, last: bool) -> float:
        """Sleeps to the end of the pass, and returns how long it lasted."""
        should = self.seconds(step.pieces[-1].end - step.pieces[-1].begin, last=last)
        self._count += 1
        if took > 1.05 * should:
            self._late += 1
            self._complain(took, should)
        else:
            time.sleep(should - took if took < should else 0.0)
        return max(took, should)

    def computing(self, took: float, step: Step) -> float:
        """How long computing lasted in a pass that did: what the pace adds is computing, but for the synchronisation."""
        return max(took, self.seconds(step.pieces[-1].end - step.pieces[-1].begin, last=False))

    def _complain(self, took: float, should: float) -> None:
        if not self._said and self._count >= _ENOUGH and self._late > _LATE * self._count:
            self._said = True
            log.warning(
                "this replica cannot keep the pace: a pass took %.3g s, the profile says %.3g s", took, should
            )


def load(path: str, place: Place) -> Pace:
    """The pace in a file."""
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=PaceFile)
    except OSError as error:
        raise InputError(f"cannot read the pace {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is no pace: {error}") from error
    return make(file, place, path)


def make(file: PaceFile, place: Place, name: str = "the pace") -> Pace:
    """Checked."""
    sizes: list[Any] = [size for size in file.seconds if not (size.isdigit() and int(size) > 0)]
    if sizes or any(not (0 < s < 3600) for s in file.seconds.values()):
        raise InputError(f"{name}: seconds must name whole numbers of examples and times of up to an hour")
    if not file.seconds and file.params is None and file.aware is None:
        raise InputError(f"{name} has neither params nor seconds")
    return Pace(file, place)

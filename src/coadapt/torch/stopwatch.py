"""Times of steps, by how they run: what ``timing`` reduces and ``measuring`` reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coadapt.model import Configuration
from coadapt.torch.steps import Step
from coadapt.torch.timing import Times

if TYPE_CHECKING:
    from coadapt.torch.training import Training

#: Steps after a start or a change whose time says nothing yet.
_WARM_UP = 2


class Stopwatch:
    """Of one replica. ``mark`` and ``spent``: when what is being made began, by the wall's clock and by that of samples."""

    def __init__(self, training: Training) -> None:
        self._training = training
        #: Times since they were last taken, by configuration, and those of the present one.
        self.times: dict[Configuration, Times] = {}
        self.current = Times()
        #: Steps to come whose time says nothing.
        self.fresh = 0
        self.mark = self.spent = 0.0

    def start(self) -> None:
        """What comes next is timed from here."""
        self.mark, self.spent = time.perf_counter(), self._training.plain.spent()

    def restart(self) -> None:
        """The batch size or the replicas have changed."""
        training = self._training
        training.sampling.restart()
        if training.gradients is not None:
            training.gradients.norms.forget()
        self.fresh = _WARM_UP
        self.current = self.times.setdefault(self.configuration(), Times())

    def take(self) -> dict[Configuration, Times]:
        """Times since they were last taken."""
        taken, self.times = self.times, {}
        if self._training.started:
            self.current = self.times[self.configuration()] = Times()
        return taken

    def configuration(self) -> Configuration:
        """How steps run at present."""
        place, split = self._training.group.place, self._training.split
        accumulation = split.accumulation
        local = -(-split.batch // place.replicas)
        return Configuration(
            nodes=place.nodes,
            replicas=place.replicas,
            atomic_batch=-(-local // (accumulation + 1)),
            accumulation=accumulation,
            gpu_type=self._training.gpu_type,
        )

    def passed(self, step: Step) -> None:
        """An accumulation pass is over: pure computing."""
        took, pace, split = time.perf_counter() - self.mark, self._training.pace, self._training.split
        if pace is not None:
            took = pace.sleep(took, step, last=False)
        # a larger step than the others says nothing of them
        if not self.fresh and step.batch == split.batch and not split.twice:
            self.current.compute.add(took)
        self.mark = time.perf_counter()

    def computed_s(self, step: Step, update_s: float) -> float:
        """What the last pass of a step that did not overlap has computed for, its update included."""
        gradients, pace = self._training.gradients, self._training.pace
        assert gradients is not None
        compute_s = max(gradients.computed_at - self.mark, 0.0) + update_s
        return compute_s if pace is None else pace.computing(compute_s, step)

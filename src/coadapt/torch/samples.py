"""What sampled steps tell: gradient statistics and speeds, the same on all replicas, for they are sums over them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coadapt.torch.history import STATISTICS
from coadapt.torch.noise import Sample, estimate
from coadapt.torch.noise_filter import NoiseFilter
from coadapt.torch.norms import Observed
from coadapt.torch.steps import Step

if TYPE_CHECKING:
    from coadapt.torch.training import Training


class Samples:
    """Told of every sampled step by ``training``."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.noise = NoiseFilter()
        #: Seconds per example of every replica.
        self.example_s: tuple[float, ...] = ()
        self._shared_s = 0.0

    def observe(self, step: Step, took: float, compute_s: float, timed: bool) -> None:
        """A sampled step is over: its statistics become everybody's."""
        training, sampling = self._training, self._training.sampling
        gradients = training.gradients
        assert gradients is not None
        if timed or training.split.twice:
            sampling.cost.append(gradients.cost_s + self._shared_s)
        # a larger step than the others says nothing of them
        if timed and not training.split.twice:
            training.watch.current.sampled.add(took)
            if not training.watch.current.compute.count or len(step.pieces) == 1:
                training.watch.current.compute.add(compute_s)
        observed = gradients.norms.take()
        if observed is None:
            if gradients.norms.wants_another:
                sampling.again()
            else:
                sampling.settle(*sampling.times(), pair=False)
            return
        began = training.plain.spent()
        self._share(observed, compute_s, sum(piece.end - piece.begin for piece in step.pieces[-1:]))
        self._shared_s = training.plain.spent() - began

    def refresh(self, scale: float) -> None:
        """New statistics come into effect once they differ enough: from the next step on, and on record."""
        history, step = self._training.history, self._training.ledger.step
        now, grad = history.now, self.noise.grad
        if now is not None and not history.replays and history.stale(grad, scale):
            history.add(replace(now, step=step + 1, grad=grad, why=STATISTICS))

    def _share(self, observed: Observed, compute_s: float, examples: int) -> None:
        training, sampling = self._training, self._training.sampling
        assert training.limits is not None
        replicas = training.group.place.replicas
        per_example = [0.0] * replicas
        per_example[training.rank] = compute_s / max(examples, 1)
        sums = training.group.sum([observed.sum_sqr, *sampling.times(), *per_example])
        if len(self.example_s) == replicas:
            self.example_s = tuple(0.7 * a + 0.3 * b for a, b in zip(self.example_s, sums[3:], strict=True))
        else:
            self.example_s = tuple(sums[3:])
        pair = estimate(
            sums[0] / observed.parts,
            observed.total_sqr,
            batch=observed.batch,
            mean_inverse=observed.mean_inverse,
            initial_batch=training.limits.initial,
            population=training.length or math.inf,
        )
        # the few examples left at the end of a pass say little, and loudly
        if pair is not None and 2 * observed.batch >= training.split.batch:
            of_one = observed.batch // 2 if observed.successive else observed.batch
            steps, split = sampling.interval, training.split
            if split.twice:
                steps = max(split.twice * split.batch // of_one, 1)
            sample = Sample(*pair, observed.successive)
            self.noise.add(sample, of_one / training.limits.initial, steps)
            self.refresh(split.batch / training.limits.initial)
        sampling.settle(sums[1] / replicas, sums[2] / replicas, pair=observed.successive)
        assert training.gradients is not None
        training.gradients.norms.chained = sampling.always

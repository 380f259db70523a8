"""Gittins index of a job by its attained service: Tiresias (Gu et al., NSDI 2019), "2D-Gittins".

Of all jobs that have received service a (GPU-seconds) and not finished, let S be the total service:

    index(a) = P(S <= a + delta | S > a) / E[min(S - a, delta) | S > a]

the chance to finish within one more quantum delta per GPU-second spent on it; larger goes first. The
distribution of S is a sample of past jobs.

The released simulator differs in two ways, and we follow the definition: in the mean it takes a
finishing job's *total* service instead of S - a, and its policy sorts by the index ascending. Beyond the
largest sample nothing is known; the index is 0, so that such a job goes last.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from coadapt.errors import InputError
from coadapt.prediction._base import FloatArray


class GittinsIndex:
    """The index for one sample and quantum. It sorts the sample once; each call then takes O(log n)."""

    def __init__(self, services_gpu_s: Iterable[float], quantum_gpu_s: float) -> None:
        sample = np.sort(np.fromiter(services_gpu_s, dtype=np.float64))
        if not len(sample) or not sample[0] > 0 or not np.isfinite(sample[-1]):
            raise InputError("a Gittins index needs a sample of positive, finite services")
        if not quantum_gpu_s > 0:
            raise InputError(f"quantum {quantum_gpu_s} GPU-s must be positive")
        self.quantum_gpu_s = quantum_gpu_s
        self._sample = sample
        #: _sums[i] = sum of the i smallest.
        self._sums = np.concatenate(([0.0], np.cumsum(sample)))

    def __call__(self, attained_gpu_s: npt.ArrayLike) -> FloatArray:
        """Index of jobs that have received ``attained_gpu_s``, per GPU-second."""
        attained = np.asarray(attained_gpu_s, dtype=np.float64)
        first = np.searchsorted(self._sample, attained, side="right")
        last = np.searchsorted(self._sample, attained + self.quantum_gpu_s, side="right")
        finishing = last - first
        # total service that the survivors take within the quantum
        taken = self._sums[last] - self._sums[first] - attained * finishing
        taken = taken + self.quantum_gpu_s * (len(self._sample) - last)
        return np.asarray(np.divide(finishing, taken, out=np.zeros(attained.shape), where=taken > 0))

"""The contract of a step-time model: how long one optimizer step of a data-parallel job takes on given GPUs.

    throughput = K m (s + 1) / T(n, K, m, s)      n nodes, K replicas, m examples per GPU, s accumulation steps

A model is two classes in one file: a ``StepTimeModel``, which fits, and a ``FittedStepTime``, what was fitted to the
measurements of one job on one GPU type. The latter is frozen, hashable, plain data: it can be written into a log and is
the key of memos. A policy names the model that its curves and the agents of its jobs use (``step_time_model``).

Everything outside the family gets a model by name (``step_time_model``): ``"node-aware"`` is the product's, ``"pollux"`` that of
Pollux, for policies that are reproduced as published. Others come from files beside these or from entry points
(``plugins.STEP_TIME_MODELS``).

The table of measurements is the same for all models (``step_table``): it is folded from the log, which knows no policy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from coadapt.model import Configuration, Fact
from coadapt.model.interval import Interval
from coadapt.plugins import STEP_TIME_MODELS
from coadapt.prediction._base import FloatArray, Singles
from coadapt.prediction.step_time import DEFAULT_MODEL
from coadapt.prediction.step_time.step_table import Point, StepTimeTable

if TYPE_CHECKING:
    from coadapt.prediction.parameter_server import ServerParams, ServerPrior, ServerTable

#: Node counts that a model which does not say so tells apart.
_NODE_COUNTS = np.arange(1, 4097)
#: Fits kept by each model.
_KEPT = 32768
#: One of each kind: agents and scheduler share its fits.
_models: dict[type, StepTimeModel] = {}


class FittedStepTime(Fact, frozen=True):
    """Step times of one job on one GPU type. Arguments broadcast; all times are in seconds.

    A model must implement ``step_time`` and ``predict``. It may override the rest with a better or faster implementation.
    """

    def step_time(
        self,
        nodes: npt.ArrayLike,
        replicas: npt.ArrayLike,
        atomic: npt.ArrayLike,
        accumulation: npt.ArrayLike = 0,
    ) -> FloatArray:
        """Seconds of one optimizer step.

        Args:
            nodes: Number of nodes.
            replicas: Number of replicas, one GPU each.
            atomic: Examples per GPU and backward pass.
            accumulation: Backward passes before the one that synchronises.
        """
        raise NotImplementedError

    def predict(self, x: Configuration) -> Interval:
        """Step time in configuration ``x``, with its 80% interval."""
        raise NotImplementedError

    def grad_time(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, atomic: npt.ArrayLike) -> FloatArray:
        """Seconds of one backward pass without synchronisation; by default the step of a single replica."""
        shape = np.broadcast_shapes(np.shape(nodes), np.shape(replicas), np.shape(atomic))
        return np.asarray(np.broadcast_to(self.step_time(1, 1, atomic), shape))

    def throughput(
        self,
        nodes: npt.ArrayLike,
        replicas: npt.ArrayLike,
        atomic: npt.ArrayLike,
        accumulation: npt.ArrayLike = 0,
    ) -> FloatArray:
        """Examples per second.

        Args:
            nodes: Number of nodes.
            replicas: Number of replicas, one GPU each.
            atomic: Examples per GPU and backward pass.
            accumulation: Backward passes before the one that synchronises.
        """
        examples = np.asarray(replicas) * np.asarray(atomic) * (np.asarray(accumulation) + 1)
        return np.asarray(examples / self.step_time(nodes, replicas, atomic, accumulation))

    def projected(self, ratio: float, scatter: float) -> FittedStepTime:
        """This fit on a GPU ``ratio`` times as fast; ``scatter`` of log times is added, because nothing was measured there."""
        return ProjectedStepTime(fitted=self, ratio=ratio, scatter=scatter)

    def distinct_nodes(self, nodes: npt.ArrayLike) -> npt.NDArray[np.int_]:
        """Index into ``node_counts`` from 1 (0: no node): node counts of one index take the same time."""
        return np.asarray(nodes)

    def node_counts(self) -> npt.NDArray[np.int_]:
        """The node counts that the model tells apart, in ascending order."""
        return _NODE_COUNTS

    def batch_group(self) -> Hashable | None:
        """Jobs with the same answer can be asked together by ``times_many``; None: it is not implemented.

        The answer of a job must not depend on the others in its group.
        """
        return None

    @classmethod
    def batch_terms(cls, atomic: npt.NDArray[np.int_]) -> Singles:
        """Values of batch sizes that ``times_many`` needs, computed once for all jobs with the same limits."""
        return np.asarray(atomic, dtype=np.float32)

    @classmethod
    def times_many(
        cls,
        jobs: Sequence[FittedStepTime],
        atomic: Singles,
        terms: Singles,
        nodes: npt.NDArray[np.int_],
        replicas: npt.NDArray[np.int_],
    ) -> tuple[Singles, Singles]:
        """Times of one backward pass and of one step without accumulation, of many jobs of one group at once.

        All arrays are [job, candidate, place].

        Args:
            jobs: Fits of one ``batch_group``.
            atomic: Examples per GPU and backward pass.
            terms: ``batch_terms`` of ``atomic``.
            nodes: Number of nodes of each place.
            replicas: Number of replicas of each place.
        """
        raise NotImplementedError


class ProjectedStepTime(FittedStepTime, frozen=True):
    """Another fit with all its times divided by ``ratio``."""

    fitted: FittedStepTime
    ratio: float
    scatter: float

    def step_time(
        self,
        nodes: npt.ArrayLike,
        replicas: npt.ArrayLike,
        atomic: npt.ArrayLike,
        accumulation: npt.ArrayLike = 0,
    ) -> FloatArray:
        """Seconds of one step of ``replicas`` on ``nodes``, ``atomic`` examples per GPU, ``accumulation`` extra passes."""
        return self.fitted.step_time(nodes, replicas, atomic, accumulation) / self.ratio

    def grad_time(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, atomic: npt.ArrayLike) -> FloatArray:
        return self.fitted.grad_time(nodes, replicas, atomic) / self.ratio

    def predict(self, x: Configuration) -> Interval:
        known = self.fitted.predict(x)
        # the half-width of an 80% interval is 1.2816 standard deviations of a normal distribution
        width = math.hypot(math.log(known.upper / known.low) / 2, 1.2816 * self.scatter)
        value = known.value / self.ratio
        return Interval(value=value, low=value / math.exp(width), high=value * math.exp(width))

    def distinct_nodes(self, nodes: npt.ArrayLike) -> npt.NDArray[np.int_]:
        return self.fitted.distinct_nodes(nodes)

    def node_counts(self) -> npt.NDArray[np.int_]:
        return self.fitted.node_counts()


_Key: TypeAlias = tuple[tuple[Point, ...], FittedStepTime | None]


class StepTimeModel(ABC):
    """Fits step times; one instance serves the whole process (``model.step_time_model``).

    A model implements ``fit_points``; this class provides the rest, and a memo of all fits.
    """

    name: ClassVar[str]
    order: ClassVar[int]
    #: True if what is known of past jobs and of jobs alike is added to a job's own measurements.
    uses_past_jobs: ClassVar[bool] = True
    #: True if the noise scale of gradients is carried from the batch size it was measured at to others.
    carries_noise: ClassVar[bool] = True
    #: True if fitting many jobs in one call takes less time than one by one: all that are stale are then fitted when
    #: the first of them is asked for.
    fits_together: ClassVar[bool] = False
    #: True if curves look goodput up in a grid of all sizes; else few places are computed as they are asked for.
    by_grid: ClassVar[bool] = False

    def __init__(self) -> None:
        self._memo: OrderedDict[_Key, FittedStepTime] = OrderedDict()
        #: Fits really computed so far, not answered from the memo.
        self.fits = 0

    @abstractmethod
    def fit_points(
        self, jobs: Sequence[tuple[Point, ...]], priors: Sequence[FittedStepTime | None]
    ) -> list[FittedStepTime]:
        """Fit the points of each job (at least one each); ``priors``: see ``usable_prior``.

        Pure, and the result of a job must not depend on the others.
        """

    def usable_prior(self, prior: FittedStepTime | None) -> FittedStepTime | None:
        """``prior`` if the model can use it beside measurements, else None."""
        return None

    def fit(
        self, table: StepTimeTable, prior: FittedStepTime | None = None, *, gpu_type: str = "gpu"
    ) -> FittedStepTime | None:
        """The fit for one GPU type; ``prior`` while nothing was measured on it, or None. Memoised."""
        points = table.points(gpu_type)
        if not points:
            return prior
        usable = self.usable_prior(prior)
        if usable is not None:
            return self._fitted([(points, usable)])[0]
        known: FittedStepTime | None = table.fitted.get((self.name, gpu_type))
        if known is None:
            known = table.fitted[self.name, gpu_type] = self._fitted([(points, None)])[0]
        return known

    def fit_many(
        self,
        tables: Sequence[StepTimeTable],
        priors: Sequence[FittedStepTime | None] | None = None,
        *,
        gpu_type: str = "gpu",
    ) -> list[FittedStepTime | None]:
        """``fit`` of each table, all at once."""
        around = priors if priors is not None else [None] * len(tables)
        points = [table.points(gpu_type) for table in tables]
        keys = [(some, self.usable_prior(prior)) for some, prior in zip(points, around, strict=True) if some]
        fitted = iter(self._fitted(keys))
        return [next(fitted) if some else prior for some, prior in zip(points, around, strict=True)]

    def fit_servers(
        self, table: ServerTable, prior: ServerParams | ServerPrior | None = None
    ) -> ServerParams | None:
        """Fit the speed of a job with parameter servers, from measurements of that kind."""
        from coadapt.prediction import parameter_server

        return parameter_server.fit(table, prior)

    def forget(self) -> None:
        """Empty the memo; used to measure how long fits take."""
        self._memo.clear()

    def _fitted(self, keys: Sequence[_Key]) -> list[FittedStepTime]:
        # a key is long, and so is the time to look it up: once, where it is known
        found = [self._memo.get(key) for key in keys]
        new = list(dict.fromkeys(key for key, known in zip(keys, found, strict=True) if known is None))
        if new:
            jobs, priors = zip(*new, strict=True)
            self.fits += len(new)
            fitted = dict(zip(new, self.fit_points(jobs, priors), strict=True))
            found = [fitted[key] if one is None else one for key, one in zip(keys, found, strict=True)]
            self._memo.update(fitted)
            while len(self._memo) > _KEPT:
                self._memo.popitem(last=False)
        return [one for one in found if one is not None]


def step_time_model(which: str | StepTimeModel = DEFAULT_MODEL) -> StepTimeModel:
    """The model of a name, always the same object; an instance is returned as it is."""
    if not isinstance(which, str):
        return which
    cls: type[StepTimeModel] = STEP_TIME_MODELS.load(which)
    if cls not in _models:
        _models[cls] = cls()
    return _models[cls]


def fit(
    table: StepTimeTable,
    prior: FittedStepTime | None = None,
    *,
    gpu_type: str = "gpu",
    model: str | StepTimeModel = DEFAULT_MODEL,
) -> FittedStepTime | None:
    """Fit the step times of one job on one GPU type; None if nothing was measured and there is no prior. Memoised.

    Args:
        table: Measurements of the job.
        prior: The answer while nothing was measured; some models also use it together with measurements.
        gpu_type: The GPU type.
        model: A step-time model, or its name.
    """
    return step_time_model(model).fit(table, prior, gpu_type=gpu_type)


def fit_many(
    tables: Sequence[StepTimeTable],
    priors: Sequence[FittedStepTime | None] | None = None,
    *,
    gpu_type: str = "gpu",
    model: str | StepTimeModel = DEFAULT_MODEL,
) -> list[FittedStepTime | None]:
    """``fit`` of many jobs at once.

    Args:
        tables: Measurements of each job.
        priors: Prior of each job.
        gpu_type: The GPU type.
        model: A step-time model, or its name.
    """
    return step_time_model(model).fit_many(tables, priors, gpu_type=gpu_type)


def fit_count() -> int:
    """Number of fits that this process has computed, without those answered from a memo."""
    return sum(model.fits for model in _models.values())

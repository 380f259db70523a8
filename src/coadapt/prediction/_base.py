"""The contract of a predictor, and the interval every prediction carries.

A predictor is a module of pure functions around two kinds of frozen, hashable, plain data:

- a **table**: everything measurements have said so far, aggregated;
- **params**: what was fitted to a table.

Both can therefore sit in the scheduler's state, be written into a log, and be keys of a memo.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from coadapt.model.interval import Interval

if TYPE_CHECKING:
    from coadapt.model import Measurement

FloatArray = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

#: Share of true values that the interval of a prediction is meant to hold.
COVERAGE = 0.8

Table = TypeVar("Table")
Table_contra = TypeVar("Table_contra", contravariant=True)
Params_co = TypeVar("Params_co", covariant=True)
Params_contra = TypeVar("Params_contra", contravariant=True)
Query_contra = TypeVar("Query_contra", contravariant=True)


class Observe(Protocol[Table]):
    """Called by the scheduler for every report of an agent, on the hot path: must be cheap.

    Returns a new table, or *the same object* if the measurement says nothing that could alter a fit.
    The order of measurements does not matter, up to rounding; an exact repeat of an exact value, which
    only a noise-free source makes, counts once.
    """

    def __call__(self, table: Table, measurement: Measurement, /) -> Table: ...


class Fit(Protocol[Table_contra, Params_co]):
    """Called when a decision needs a job whose table has changed; memoised by what the fit depends on.

    ``prior`` is the answer while the table does not suffice (what is known of similar jobs); without
    one the answer is then None: not known yet.
    """

    def __call__(self, table: Table_contra, prior: Any = None, /) -> Params_co | None: ...


class Predict(Protocol[Params_contra, Query_contra]):
    """Called by the planner, by reports and wherever a number is shown: a value with its interval.

    Policies, which ask for thousands of values at once, use the vectorised functions beside it.
    """

    def __call__(self, params: Params_contra, x: Query_contra, /) -> Interval: ...


def t_quantile(freedom: float) -> float:
    """Half-width, in standard deviations, of the 80% interval with ``freedom`` degrees of freedom."""
    from scipy.special import stdtrit  # only here: a replica that starts should not wait for scipy

    return float(stdtrit(max(freedom, 1.0), 0.5 + COVERAGE / 2))


def relative_interval(value: float, log_width: float) -> Interval:
    """``value`` times or divided by exp(log_width): for times and speeds, which err by factors."""
    factor = math.exp(log_width)
    return Interval(value=value, low=value / factor, high=value * factor)

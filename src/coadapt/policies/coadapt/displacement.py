"""What keeps running jobs from being displaced for next to nothing, where users compete.

A job that is stopped has to start again: that time is lost, as with every other change. Beyond it a job is displaced only for
a gain of ``MARGIN``, and of two jobs that are worth the same the older one goes first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coadapt.policies.coadapt.offers import Offers

Floats = npt.NDArray[np.float64]
#: Share of its worth that a running job has over one that would take its place.
MARGIN = 0.05
#: The same that the oldest job has over the youngest: it decides between equals, and nothing else.
_OLDER = 1e-6


def with_margin(found: Offers, value: Floats, cost_s: Floats, horizon_s: float) -> Floats:
    """Returns ``value`` with what a stop costs each running job added to all options but none.

    Args:
        found: the options of this decision.
        value: value[j, o] of the knapsack.
        cost_s: seconds that a change of each job takes.
        horizon_s: longest time over which a change is expected to last.
    """
    rows = np.arange(len(found.jobs))
    here = np.where(found.current > 0, value[rows, np.maximum(found.current, 0)], 0.0)
    here = np.where(np.isfinite(here), here, 0.0)
    stop = here * (MARGIN + cost_s / (horizon_s + cost_s))
    age = np.argsort(np.argsort([job.order for job in found.jobs], kind="stable"), kind="stable")
    older = 1 + _OLDER * (1 - age / max(len(rows), 1))
    kept = np.where(np.isfinite(value), value * older[:, None] + stop[:, None], -np.inf)
    kept[:, 0] = 0.0
    return np.asarray(kept)

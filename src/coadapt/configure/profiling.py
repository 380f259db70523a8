"""Which short run to make next: the option that may yet turn out best, until none may.

A run tells its own pass time and, through the fit, those of its neighbours. First three that span the space; then, each time, of the options
not yet run the one with the lowest optimistic value (forecast less one and a half spreads) among those that may hold the limits.
Over when the lowest of all belongs to an option that was run, or when no other may beat it by more than ``worth``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from coadapt.configure.decide import best_of, likeliest_of
from coadapt.configure.outlook import Forecast, columns_of, look
from coadapt.configure.problem import Option, Question

_OPTIMISM = 1.5


def first_runs(options: Sequence[Option]) -> list[int]:
    """Three options that span the space: smallest on few GPUs, largest on many, and one between."""
    order = sorted(range(len(options)), key=lambda i: (options[i].gpus, options[i].batch))
    smallest, largest = order[0], max(order, key=lambda i: (options[i].batch, options[i].gpus))
    few = [i for i in order if options[i].gpus == options[smallest].gpus]
    many = [i for i in order if options[i].gpus == max(options[j].gpus for j in order)]
    picks = [smallest, largest, many[0], few[-1]]
    return list(dict.fromkeys(picks))[:3]


def next_run(
    question: Question,
    options: Sequence[Option],
    forecast: Forecast | None,
    done: Collection[int],
    worth: float = 0.01,
) -> int | None:
    """Index of the option to run, or None: enough is known. ``forecast``: from the runs so far; None before the first."""
    for i in first_runs(options):
        if i not in done:
            return i
    if forecast is None:
        return None
    outlook = look(question, columns_of(question, options), forecast)
    best = best_of(question, outlook)
    here = likeliest_of(question, outlook) if best is None else best
    if here not in done:
        return here
    value = outlook.total_s if question.objective == "time" else outlook.cost
    lucky = np.exp(-_OPTIMISM * outlook.log_sd)
    may = (outlook.total_s * lucky <= outlook.limit_s) & (outlook.reached >= 0.5)
    hoped = np.where(may, value * lucky, np.inf)
    hoped[list(done)] = np.inf
    i = int(np.argmin(hoped))
    return i if hoped[i] < (1 - worth) * value[here] else None

"""A wall clock that jumps, and decisions that hang: read by Python at its start where this directory is on PYTHONPATH; no
part of the product.

The file that $CHAOS_CLOCK names holds the seconds by which ``time.time`` is wrong at present. In a controller, decisions of the
policy fifo never end while a job called "endless" takes part in them.
"""

import os
import sys
import time

_file, _true = os.environ.get("CHAOS_CLOCK"), time.time


def _wrong() -> float:
    try:
        with open(_file) as offset:  # type: ignore[arg-type]  # noqa: PTH123 - as little as possible is imported
            return _true() + float(offset.read() or 0.0)
    except (OSError, ValueError):
        return _true()


if _file:
    time.time = _wrong


def _hang() -> None:
    from coadapt.policies.fifo import FifoPolicy

    decide = FifoPolicy.decide

    def hanging(self, snapshot, curves, memory, rng):  # type: ignore[no-untyped-def]
        for job in snapshot:
            while job.spec.name == "endless":
                time.sleep(0.01)
        return decide(self, snapshot, curves, memory, rng)

    FifoPolicy.decide = hanging  # type: ignore[method-assign]


if _file and "coadapt.live.controller_process" in sys.orig_argv:
    _hang()

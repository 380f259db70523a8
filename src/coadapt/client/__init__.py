"""The typed client of a controller's HTTP API, and what is submitted through it.

    with coadapt.connect() as cluster:
        job = cluster.submit(read_submission(["train.yaml"], gpus="t4:1..8").spec)

- ``Client``; ``DeadlineError``, ``NotFoundError``, ``RefusedError`` and ``UnreachableError``;
- ``read_submission``: a job file joined with options becomes a ``Submission``, a ``JobSpec`` and the directory of its code.

Names are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.client.client import (
        ENDED,
        Client,
        DeadlineError,
        NotFoundError,
        RefusedError,
        UnreachableError,
    )
    from coadapt.client.submission import Submission, read_submission
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "client": (
                "ENDED",
                "Client",
                "DeadlineError",
                "NotFoundError",
                "RefusedError",
                "UnreachableError",
            ),
            "submission": ("Submission", "read_submission"),
        },
    )

__all__ = [
    "ENDED",
    "Client",
    "DeadlineError",
    "NotFoundError",
    "RefusedError",
    "Submission",
    "UnreachableError",
    "read_submission",
]

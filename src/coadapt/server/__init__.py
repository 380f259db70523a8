"""HTTP API: writes the inbox, reads by following the log, and never asks the controller.

``make_app`` makes the application; ``python -m coadapt.server HOME`` serves it.

Names are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.server.app import make_app
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "app": ("make_app",),
        },
    )

__all__ = [
    "make_app",
]

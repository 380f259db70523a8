"""Messages between processes: requests and answers of the HTTP API, reports of agents, and answers of tools.

The package offers the types that the client takes and returns: ``JobLine``, ``EventLine``, ``ClusterNow``, ``Preview``
with its ``Option``, ``Update``, ``NewToken``, ``TokenLine``, ``NodeLine``; and the answers of the tools in the user's interpreter: ``Disturbed``,
``LinkMeasured``, ``Rehearsed``, ``RunProfiled``. The modules ``api``, ``agent``, ``serve_options`` and ``tool_messages``
have the rest.

Names are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.wire.api import (
        AuditLine,
        ClusterNow,
        EventLine,
        JobLine,
        NewToken,
        NodeLine,
        Option,
        Preview,
        TokenLine,
        Update,
    )
    from coadapt.wire.serve_options import ServeOptions
    from coadapt.wire.tool_messages import Disturbed, LinkMeasured, OperationShare, Rehearsed, RunProfiled
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "api": (
                "AuditLine",
                "ClusterNow",
                "EventLine",
                "JobLine",
                "NewToken",
                "NodeLine",
                "Option",
                "Preview",
                "TokenLine",
                "Update",
            ),
            "serve_options": ("ServeOptions",),
            "tool_messages": ("Disturbed", "LinkMeasured", "OperationShare", "Rehearsed", "RunProfiled"),
        },
    )

__all__ = [
    "AuditLine",
    "ClusterNow",
    "Disturbed",
    "EventLine",
    "JobLine",
    "LinkMeasured",
    "NewToken",
    "NodeLine",
    "OperationShare",
    "Option",
    "Preview",
    "Rehearsed",
    "RunProfiled",
    "ServeOptions",
    "TokenLine",
    "Update",
]

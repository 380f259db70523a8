"""A live cluster put together: controller process, supervisor, shutdown, health checks.

- ``home_of``: the home directory of a cluster on this machine; ``coadapt.connect`` finds its controller;
- ``serve``, ``serve_in_background`` and ``serve_standby``, ``end_all``, ``sign_in_link``;
- ``systemd_unit`` and ``alert_rules``: files for the operation of a cluster;
- ``examine``: problems of a cluster, as ``Finding`` s.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.live.connect import home_of
    from coadapt.live.deployment import alert_rules, systemd_unit
    from coadapt.live.health_checks import Finding, examine
    from coadapt.live.serve_process import serve, serve_in_background, serve_standby, sign_in_link
    from coadapt.live.shutdown import end_all
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "connect": ("home_of",),
            "deployment": ("alert_rules", "systemd_unit"),
            "health_checks": ("Finding", "examine"),
            "serve_process": ("serve", "serve_in_background", "serve_standby", "sign_in_link"),
            "shutdown": ("end_all",),
        },
    )

__all__ = [
    "Finding",
    "alert_rules",
    "end_all",
    "examine",
    "home_of",
    "serve",
    "serve_in_background",
    "serve_standby",
    "sign_in_link",
    "systemd_unit",
]

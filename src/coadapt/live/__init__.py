"""A live cluster put together: controller process, supervisor, shutdown, health checks.

- ``home_of``: the home directory of a cluster on this machine; ``coadapt.connect`` finds its controller;
- ``serve``, ``serve_in_background`` and ``serve_standby``, ``end_all``, ``sign_in_link``;
- ``back_up`` and ``restore_home``: a home in one file, and from it a new home;
- ``garbage_plan`` and ``collect_garbage``: what no job needs any more;
- ``systemd_unit`` and ``alert_rules``: files for the operation of a cluster;
- ``up_slurm``, ``up_ray``, ``up_kubernetes``: an allocation of Slurm, a cluster of Ray, pods of Kubernetes as the cluster;
- ``kubernetes_manifest`` and ``containerfile``: a controller on Kubernetes, and its image;
- ``examine``: problems of a cluster, as ``Finding`` s.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.live.backup import back_up
    from coadapt.live.connect import home_of
    from coadapt.live.deployment import alert_rules, systemd_unit
    from coadapt.live.garbage import Plan, collect_garbage, garbage_plan
    from coadapt.live.health_checks import Finding, examine
    from coadapt.live.kubernetes_files import containerfile, kubernetes_manifest
    from coadapt.live.kubernetes_pilot import up_kubernetes
    from coadapt.live.pilot import up_ray, up_slurm
    from coadapt.live.restore import restore_home, restore_lines
    from coadapt.live.serve_process import serve, serve_in_background, serve_standby, sign_in_link
    from coadapt.live.shutdown import end_all
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "backup": ("back_up",),
            "connect": ("home_of",),
            "deployment": ("alert_rules", "systemd_unit"),
            "garbage": ("Plan", "collect_garbage", "garbage_plan"),
            "health_checks": ("Finding", "examine"),
            "kubernetes_files": ("containerfile", "kubernetes_manifest"),
            "kubernetes_pilot": ("up_kubernetes",),
            "restore": ("restore_home", "restore_lines"),
            "pilot": ("up_ray", "up_slurm"),
            "serve_process": ("serve", "serve_in_background", "serve_standby", "sign_in_link"),
            "shutdown": ("end_all",),
        },
    )

__all__ = [
    "Finding",
    "Plan",
    "alert_rules",
    "back_up",
    "collect_garbage",
    "containerfile",
    "end_all",
    "examine",
    "garbage_plan",
    "home_of",
    "kubernetes_manifest",
    "restore_home",
    "restore_lines",
    "serve",
    "serve_in_background",
    "serve_standby",
    "sign_in_link",
    "systemd_unit",
    "up_kubernetes",
    "up_ray",
    "up_slurm",
]

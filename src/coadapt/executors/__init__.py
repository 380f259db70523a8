"""The real executors, by name: local processes, machines that joined; third parties add theirs by entry points.

``find_executor`` returns the ``ExecutorPlugin`` of a name, ``connect_executor`` a connected ``Executor``;
``LocalExecutor`` is one. Modules are imported when they are first used: the keeper (``python -m
coadapt.executors.node.keeper``) lives as long as the node and must not load numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.executors._base import ExecutorPlugin, connect_executor, find_executor
    from coadapt.executors.agent.process_guard import join_machine
    from coadapt.executors.agent.session_messages import (
        AgentLine,
        AgentsListed,
        Declared,
        DeclareGone,
        ListAgents,
    )
    from coadapt.executors.agent.session_process import AgentSettings
    from coadapt.executors.engines.kubernetes import RIGHTS, KubernetesEngine
    from coadapt.executors.engines.pod_manifest import (
        PILOT_LABEL,
        TOKEN_KEY,
        KubernetesOptions,
        kubernetes_options,
        pod_manifest,
        yaml_text,
    )
    from coadapt.executors.engines.ray import RayEngine, ray_options
    from coadapt.executors.engines.slurm import (
        PilotSeen,
        SlurmOptions,
        cancel_pilots,
        pilot_script,
        pilots_seen,
        submit_script,
    )
    from coadapt.executors.hub.hub_client import HubAwayError, ask_hub, hub_address, hub_reply
    from coadapt.executors.joined import JoinedExecutor
    from coadapt.executors.kubernetes import KubernetesExecutor
    from coadapt.executors.local import LocalExecutor
    from coadapt.executors.slurm import SlurmExecutor, slurm_options
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "_base": ("ExecutorPlugin", "connect_executor", "find_executor"),
            "agent.process_guard": ("join_machine",),
            "agent.session_messages": ("AgentLine", "AgentsListed", "DeclareGone", "Declared", "ListAgents"),
            "agent.session_process": ("AgentSettings",),
            "engines.kubernetes": ("RIGHTS", "KubernetesEngine"),
            "engines.pod_manifest": (
                "KubernetesOptions",
                "PILOT_LABEL",
                "TOKEN_KEY",
                "kubernetes_options",
                "pod_manifest",
                "yaml_text",
            ),
            "engines.ray": ("RayEngine", "ray_options"),
            "engines.slurm": (
                "PilotSeen",
                "SlurmOptions",
                "cancel_pilots",
                "pilot_script",
                "pilots_seen",
                "submit_script",
            ),
            "hub.hub_client": ("HubAwayError", "ask_hub", "hub_address", "hub_reply"),
            "joined": ("JoinedExecutor",),
            "kubernetes": ("KubernetesExecutor",),
            "local": ("LocalExecutor",),
            "slurm": ("SlurmExecutor", "slurm_options"),
        },
    )

__all__ = [
    "PILOT_LABEL",
    "RIGHTS",
    "TOKEN_KEY",
    "AgentLine",
    "AgentSettings",
    "AgentsListed",
    "DeclareGone",
    "Declared",
    "ExecutorPlugin",
    "HubAwayError",
    "JoinedExecutor",
    "KubernetesEngine",
    "KubernetesExecutor",
    "KubernetesOptions",
    "ListAgents",
    "LocalExecutor",
    "PilotSeen",
    "RayEngine",
    "SlurmExecutor",
    "SlurmOptions",
    "ask_hub",
    "cancel_pilots",
    "connect_executor",
    "find_executor",
    "hub_address",
    "hub_reply",
    "join_machine",
    "kubernetes_options",
    "pilot_script",
    "pilots_seen",
    "pod_manifest",
    "ray_options",
    "slurm_options",
    "submit_script",
    "yaml_text",
]

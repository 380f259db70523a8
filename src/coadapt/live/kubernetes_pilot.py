"""``coadapt up --kubernetes``: pods with agents become the cluster; the controller runs on this machine, which the pods must reach.

The pods are bare and pinned to no node: Kubernetes (or Kueue, or an autoscaler that adds nodes for them) decides where they run. Rights needed:
to create pods and secrets in one namespace.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.executors import (
    PILOT_LABEL,
    TOKEN_KEY,
    KubernetesEngine,
    KubernetesOptions,
    kubernetes_options,
    pod_manifest,
    yaml_text,
)
from coadapt.live.pilot import loopback_warning, make_token, start_server, url_of
from coadapt.model import Node
from coadapt.model.resources import parse_cluster
from coadapt.plugins import assignments
from coadapt.store.home import Home
from coadapt.units import parse_duration

#: What replicas get from SIGTERM to SIGKILL when Kubernetes takes a pod away; the controller's own is not known to a dry run.
_GRACE_S = 30.0


def up_kubernetes(
    home: Home,
    *,
    nodes: int,
    namespace: str = "",
    image: str = "",
    gpus: str = "auto",
    virtual: str = "",
    time: str = "",
    prelude: str = "",
    listen: str = "",
    trusted_network: str = "",
    engine_settings: Sequence[str] = (),
    dry_run: bool = False,
) -> list[str]:
    """Creates pods with agents, and starts a controller on this machine if none runs; returns what to tell the user.

    Args:
        home: of the cluster; its checkpoints must lie where all pods see them.
        nodes: how many pods.
        namespace: where; empty: that of the context.
        image: container image with coadapt.
        gpus: how many GPUs each pod asks for; 0: none, it works on cores.
        virtual: GPUs that are counted only, COUNT[:TYPE].
        time: after which Kubernetes ends the pods, as 24h; empty: never.
        prelude: shell commands before the agent.
        listen: address of the API, where a controller has to be started.
        trusted_network: private network in which the API may listen without TLS.
        engine_settings: further options, NAME=VALUE, see ``KubernetesOptions``.
        dry_run: only returns the pods.
    """
    named = {"namespace": namespace, "image": image, "prelude": prelude}
    given = {**{key: value for key, value in named.items() if value}, **assignments(engine_settings)}
    options = kubernetes_options({**given, "virtual": "true"} if virtual else given)
    node, life_s = _offer(gpus, virtual, options), parse_duration(time) if time else None
    if life_s is not None and life_s < 60:
        raise InputError(f"--time {time} is too short; it must be at least a minute")
    pilot = f"coadapt-pilot-{secrets.token_hex(3)}"
    if dry_run:
        pods = _pods(pilot, options, nodes, node, options.url or url_of(home), life_s)
        return [yaml_text(pods).rstrip()]
    engine = KubernetesEngine(pilot, options)
    engine.check_pods(_pods(pilot, options, 1, node, "http://127.0.0.1:1", life_s)[0])
    start_server(home, "joined", listen, trusted_network)
    make_token(home, home.path / "pilot_token")
    token = (home.path / "pilot_token").read_text().strip()
    pods = _pods(pilot, options, nodes, node, options.url or url_of(home), life_s)
    _create(engine, pilot, token, pods)
    where = f"-n {engine.namespace} -l {PILOT_LABEL}={pilot}"
    return [
        f"Created {nodes} pod{'s' * (nodes > 1)} {pilot}-N in namespace {engine.namespace}; 'coadapt nodes' lists them when they run.",
        *([] if options.url else loopback_warning(home)),
        f"To give the nodes back: kubectl delete pods,secrets {where}. To stop everything else: coadapt down",
    ]


def _offer(gpus: str, virtual: str, options: KubernetesOptions) -> Node:
    if virtual:
        try:
            (node,) = parse_cluster(f"1x{virtual}").nodes
        except (InputError, ValueError):
            raise InputError(f"--virtual {virtual!r} is not COUNT[:TYPE], for example 4:t4") from None
        return node
    if not gpus.isdigit() or int(gpus) > 1024:
        raise InputError(
            f"--gpus {gpus}: Kubernetes must be told how many GPUs each pod gets, for example --gpus 8, or 0"
        )
    if int(gpus):
        return Node(name="", gpus=int(gpus), gpu_type="gpu")
    if not (options.cpu.isdigit() and int(options.cpu)):
        raise InputError("--gpus 0: say how many cores each pod gets, for example --engine-option cpu=8")
    return Node(name="", gpus=int(options.cpu), gpu_type="cpu")


def _pods(
    pilot: str, options: KubernetesOptions, count: int, node: Node, url: str, life_s: float | None
) -> list[dict[str, Any]]:
    found = []
    for number in range(1, count + 1):
        # its own name is that of its node: two pods may run on one
        name = f"{pilot}-{number}"
        environment = {"COADAPT_URL": url, "COADAPT_NODE": name}
        if life_s is not None:
            environment["COADAPT_REMAINING"] = _remaining(life_s)
        found.append(
            pod_manifest(
                name,
                options,
                labels={PILOT_LABEL: pilot},
                node=msgspec.structs.replace(node, name=name),
                pinned=False,
                environment=environment,
                secret=pilot,
                grace_s=_GRACE_S,
                life_s=life_s,
            )
        )
    return found


def _create(engine: KubernetesEngine, pilot: str, token: str, pods: Sequence[dict[str, Any]]) -> None:
    """All or nothing: a pod that is refused takes the others with it."""
    made = 0
    try:
        engine.create_secret(pilot, {TOKEN_KEY: token}, {PILOT_LABEL: pilot})
        for pod in pods:
            engine.create_pod(pod)
            made += 1
    except CoadaptError as error:
        engine.release([f"{pilot}-{number}" for number in range(1, made + 2)])
        engine.delete_secret(pilot)
        raise InputError(f"{error}; nothing is left of the {made} pods that were created") from None


def _remaining(life_s: float) -> str:
    """As ``coadapt node join`` reads it: days-hours:minutes:seconds."""
    seconds = int(life_s)
    return f"{seconds // 86400}-{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"

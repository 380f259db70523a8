"""Pods in which agents run, and the options that shape them.

A user's template (a Pod in YAML) is the beginning; what the agent needs is added to its first container. What Coadapt depends on (name, labels,
node, restart policy, token) cannot be overridden.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import yaml

from coadapt.errors import InputError
from coadapt.model import Node

Object = dict[str, Any]

#: Labels by which all pods of a cluster of ours, and all of a pilot, are listed.
CLUSTER_LABEL, PILOT_LABEL = "coadapt/cluster", "coadapt/pilot"
#: Key of the token in the Secret.
TOKEN_KEY = "token"
#: Name of the agent's container, unless the template has one.
_CONTAINER = "agent"
#: Seconds beyond the jobs' own grace for the agent to say what became of them.
_FAREWELL_S = 15
#: Autoscalers leave a node alone while such a pod runs there.
_KEPT = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_VOLUME = re.compile(r"([a-z0-9][a-z0-9.-]*):(/[^:]*)")


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users say about Kubernetes; empty: its own default."""

    #: Empty: that of the context, else "default".
    namespace: str = ""
    #: File and context by which the cluster is reached; empty: as kubectl finds them.
    kubeconfig: str = ""
    context: str = ""
    #: Container image with coadapt and what jobs need.
    image: str = ""
    #: File with a Pod in YAML to begin with.
    template: str = ""
    #: Labels of the nodes to use, as pool=gpu,zone=a.
    node_selector: str = ""
    #: Nodes by hand, for users who may not list them: NAME:GPUS:TYPE, separated by commas.
    nodes: str = ""
    #: How GPUs are called in resources, and the label with their type.
    gpu_resource: str = "nvidia.com/gpu"
    gpu_type_label: str = ""
    #: Cores and memory that a pod asks for, as Kubernetes writes them.
    cpu: str = ""
    memory: str = ""
    #: Kueue's LocalQueue, through which pods are admitted.
    queue: str = ""
    priority_class: str = ""
    scheduler: str = ""
    service_account: str = ""
    #: A PersistentVolumeClaim and where it is mounted in every pod: CLAIM:PATH.
    volume: str = ""
    #: Shell commands before the agent starts.
    prelude: str = ""
    #: Address at which pods reach the controller; empty: the one at which it listens.
    url: str = ""
    #: Whether GPUs are only counted, not there: for tests.
    virtual: bool = False


def kubernetes_options(given: Mapping[str, str]) -> KubernetesOptions:
    """Returns the options as typed; InputError names the wrong one."""
    try:
        options = msgspec.convert(dict(given), KubernetesOptions, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(field.name for field in msgspec.structs.fields(KubernetesOptions))
        raise InputError(f"--engine-option: {error}; Kubernetes takes {names}") from None
    if options.namespace and not _NAME.fullmatch(options.namespace):
        raise InputError(f"--engine-option namespace={options.namespace[:80]!r} is no name of a namespace")
    for name in ("template", "kubeconfig"):
        path = Path(getattr(options, name) or "/").expanduser()
        if not path.is_absolute():
            # it is read by processes with other working directories
            raise InputError(f"--engine-option {name}={path} must be an absolute path: {path.absolute()}")
    if options.volume and not _VOLUME.fullmatch(options.volume):
        raise InputError(
            f"--engine-option volume={options.volume!r} is not CLAIM:PATH, for example data:/data"
        )
    if options.node_selector:
        selector_of(options)
    read_template(options)
    named_nodes(options)
    return options


def named_nodes(options: KubernetesOptions) -> list[Node]:
    """Returns the nodes that were named by hand; InputError if one cannot be read."""
    found = []
    for text in options.nodes.split(",") if options.nodes else ():
        match = re.fullmatch(r"([a-z0-9][a-z0-9.-]{0,62}):(\d{1,4}):([a-z0-9_-]+)", text.strip())
        if match is None or int(match[2]) < 1:
            raise InputError(
                f"--engine-option nodes: {text!r} is not NAME:GPUS:TYPE, for example gpu-1:8:a100"
            )
        found.append(Node(name=match[1], gpus=int(match[2]), gpu_type=match[3]))
    return found


def selector_of(options: KubernetesOptions) -> dict[str, str]:
    """Returns the labels that nodes must have; InputError if they cannot be read."""
    found = {}
    for text in options.node_selector.split(",") if options.node_selector else ():
        name, sign, value = text.strip().partition("=")
        if not sign or not name or not re.fullmatch(r"[\w./-]+", name) or not re.fullmatch(r"[\w.-]*", value):
            raise InputError(
                f"--engine-option node_selector: {text!r} is not LABEL=VALUE, for example pool=gpu"
            )
        found[name] = value
    return found


def read_template(options: KubernetesOptions) -> Object:
    """Returns the pod to begin with; InputError if the template is none, or sets what Coadapt must set."""
    if not options.template:
        return {}
    where = f"the pod template {options.template}"
    try:
        found = yaml.safe_load(Path(options.template).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise InputError(f"{where} cannot be read: {why}") from None
    if not isinstance(found, dict) or found.get("kind", "Pod") not in ("Pod", "PodTemplate"):
        raise InputError(f"{where} must be one Pod: metadata, spec")
    found = found.get("template", found) if found.get("kind") == "PodTemplate" else found
    spec = found.get("spec", {})
    if not isinstance(spec, dict) or not isinstance(spec.get("containers", []), list):
        raise InputError(f"{where}: spec must hold a list of containers")
    if spec.get("restartPolicy", "Never") != "Never":
        raise InputError(
            f"{where} has restartPolicy {spec['restartPolicy']}; a pod that starts again is refused: use Never"
        )
    if spec.get("nodeName"):
        raise InputError(f"{where} sets nodeName; Coadapt chooses the node")
    if not all(isinstance(each, dict) for each in spec.get("containers", [])):
        raise InputError(f"{where}: every container must be a mapping")
    return found


def pod_manifest(
    name: str,
    options: KubernetesOptions,
    *,
    labels: Mapping[str, str],
    node: Node,
    pinned: bool,
    environment: Mapping[str, str],
    secret: str,
    grace_s: float,
    life_s: float | None = None,
) -> Object:
    """Returns a pod with an agent in it. The token is not in it, only the name of the Secret that has it.

    Args:
        name: of the pod.
        options: of the user.
        labels: by which it is found.
        node: what it is to have: GPUs (cores, for nodes without) and their type.
        pinned: whether it must run on the node of that name.
        environment: variables of the agent, without the token.
        secret: name of the Secret with the token.
        grace_s: what a replica gets from SIGTERM to SIGKILL.
        life_s: seconds after which Kubernetes ends it; None: never.
    """
    pod = {"apiVersion": "v1", "kind": "Pod", **deepcopy(read_template(options))} | {
        "apiVersion": "v1",
        "kind": "Pod",
    }
    pod.pop("status", None)
    metadata, spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    queue = {"kueue.x-k8s.io/queue-name": options.queue} if options.queue else {}
    metadata.pop("namespace", None)
    metadata |= {
        "name": name,
        "labels": {**metadata.get("labels", {}), "app.kubernetes.io/name": "coadapt", **queue, **labels},
        "annotations": {**_KEPT, **metadata.get("annotations", {}), "coadapt/node": node.name},
    }
    # people may pass what is printed to kubectl
    metadata |= {"namespace": options.namespace} if options.namespace else {}
    for unwanted in ("generateName", "uid", "resourceVersion", "creationTimestamp"):
        metadata.pop(unwanted, None)
    spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": math.ceil(grace_s) + _FAREWELL_S}
    # jobs run arbitrary code, and need no access to the cluster
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    for key, value in (
        ("priorityClassName", options.priority_class),
        ("schedulerName", options.scheduler),
        ("serviceAccountName", options.service_account),
    ):
        if value:
            spec[key] = value
    if life_s is not None:
        spec["activeDeadlineSeconds"] = max(int(life_s), 1)
    _add_tolerations(spec, options, node)
    if pinned:
        _pin(spec, node.name)
    elif options.node_selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **selector_of(options)}
    _add_agent(spec, options, node, environment, secret)
    return pod


def _add_agent(
    spec: Object, options: KubernetesOptions, node: Node, environment: Mapping[str, str], secret: str
) -> None:
    containers = spec.setdefault("containers", [])
    if not containers:
        containers.append({})
    container = containers[0]
    container.setdefault("name", _CONTAINER)
    if options.image:
        container["image"] = options.image
    if not container.get("image"):
        raise InputError(
            "no container image: give --engine-option image=NAME; 'coadapt kubernetes containerfile' prints how to build one"
        )
    # as process 1 a shell would ignore SIGTERM; it is replaced by the agent
    container["command"] = ["sh", "-c", _escaped(agent_script(options, node))]
    container.pop("args", None)
    container["env"] = [
        *(each for each in container.get("env", []) if each.get("name") not in environment),
        *({"name": key, "value": value} for key, value in sorted(environment.items())),
        {"name": "COADAPT_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "COADAPT_NODE_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": TOKEN_KEY}}},
    ]
    _add_resources(container, options, node)
    _add_volumes(spec, container, options)


def agent_script(options: KubernetesOptions, node: Node) -> str:
    """Returns the commands of an agent's container: they become the agent."""
    offer = ["--virtual", f"{node.gpus}:{node.gpu_type}"] if options.virtual else ["--gpus", str(node.gpus)]
    return "\n".join(
        [
            "# every life of this pod has its own; a second one is refused by the controller",
            'export COADAPT_GENERATION="$COADAPT_POD_UID.`date +%s%N`"',
            *([options.prelude] if options.prelude else []),
            f'exec coadapt node join "$COADAPT_URL" --name "$COADAPT_NODE" {shlex.join(offer)}',
        ]
    )


def _escaped(script: str) -> str:
    """Kubernetes replaces $(NAME) and $$ in commands; the shell is to see them."""
    return script.replace("$$", "$$$$").replace("$(", "$$(")


def _add_resources(container: Object, options: KubernetesOptions, node: Node) -> None:
    resources = container.setdefault("resources", {})
    asked = {"cpu": options.cpu, "memory": options.memory}
    if node.gpu_type == "cpu":
        asked["cpu"] = asked["cpu"] or str(node.gpus)
    else:
        resources["limits"] = {**resources.get("limits", {}), options.gpu_resource: str(node.gpus)}
    asked = {key: value for key, value in asked.items() if value}
    if asked:
        resources["requests"] = {**resources.get("requests", {}), **asked}


def _add_volumes(spec: Object, container: Object, options: KubernetesOptions) -> None:
    volumes, mounts = spec.setdefault("volumes", []), container.setdefault("volumeMounts", [])
    if all(mount.get("mountPath") != "/dev/shm" for mount in mounts):
        # a container's own has 64 MB, too little for loaders of data
        volumes.append({"name": "coadapt-shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "coadapt-shm", "mountPath": "/dev/shm"})
    match = _VOLUME.fullmatch(options.volume)
    if match is not None:
        volumes.append({"name": "coadapt-data", "persistentVolumeClaim": {"claimName": match[1]}})
        mounts.append({"name": "coadapt-data", "mountPath": match[2]})


def _add_tolerations(spec: Object, options: KubernetesOptions, node: Node) -> None:
    if node.gpu_type != "cpu":
        # nodes with GPUs are usually kept free of other pods by this taint
        tolerations = spec.setdefault("tolerations", [])
        tolerations.append({"key": options.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})


def _pin(spec: Object, node: str) -> None:
    """Asks for one node by affinity: unlike nodeName this passes the scheduler, quotas and queues."""
    wish = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    # of several terms one must hold: the wish belongs into each
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        term.setdefault("matchFields", []).append(wish)


class _Dumper(yaml.SafeDumper):
    """Writes YAML as people do: no references, and texts of several lines as such."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def yaml_text(objects: Sequence[Object]) -> str:
    """Returns objects of Kubernetes as a file for ``kubectl apply``."""
    return str(yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=200))


def tolerates(tolerations: Sequence[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    """Whether a pod with these tolerations may be put on a node with this taint."""
    for each in tolerations:
        if each.get("effect") not in (None, "", taint.get("effect")):
            continue
        if each.get("operator", "Equal") == "Exists":
            if not each.get("key") or each["key"] == taint.get("key"):
                return True
        elif each.get("key") == taint.get("key") and (each.get("value") or "") == (taint.get("value") or ""):
            return True
    return False

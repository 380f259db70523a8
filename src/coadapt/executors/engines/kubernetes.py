"""Kubernetes: a unit is a bare pod that takes all GPUs of one node, in one namespace (docs/design/0030-kubernetes.md).

What was seen of Kubernetes and is answered here: a force delete removes a pod from the API while its processes run (never used here; the
hub waits for the lease); a pod on a node that is lost stays Running, or Terminating, for ever (it counts as ended, in addition to the
lease); a list of a namespace that does not exist is empty (``check`` asks to create a pod, without creating one).
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from coadapt.errors import InputError
from coadapt.executors.engines._base import (
    EngineNode,
    EngineRefusedError,
    EngineSilentError,
    SeenUnit,
    Unit,
    prefix_of,
)
from coadapt.executors.engines.kubeconfig import find_cluster
from coadapt.executors.engines.kubernetes_api import Answer, KubernetesApi, Object, refusal, version_of
from coadapt.executors.engines.pod_manifest import (
    CLUSTER_LABEL,
    TOKEN_KEY,
    KubernetesOptions,
    named_nodes,
    pod_manifest,
    read_template,
    tolerates,
    yaml_text,
)
from coadapt.executors.node.devices import short_name
from coadapt.model import Node

#: The oldest release that is supported; tests run on it.
OLDEST = (1, 20)
#: Labels that name the GPUs of a node: of NVIDIA's feature discovery, and of providers.
_TYPE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
)
#: Seconds for which pods that have ended are kept, for people to read why.
_KEPT_S = 300.0
#: Seconds after the end of its grace period at which a pod that is still there is one of a node that nobody hears.
_STUCK_S = 120.0
_UNREACHABLE = "node.kubernetes.io/unreachable"
_FINAL = ("Succeeded", "Failed")
#: What the adapter does: verb, resource.
RIGHTS = (
    ("create", "pods"),
    ("list", "pods"),
    ("delete", "pods"),
    ("create", "secrets"),
    ("delete", "secrets"),
)
_LONGEST_NAME = 63


class KubernetesEngine:
    """Implements ``Engine``.

    Args:
        cluster: identity of the event log, part of the names of pods.
        options: where, as whom, and what pods look like.
        grace_s: what a replica gets from SIGTERM to SIGKILL.
        answer_s: seconds that the API may take.
        clock: seconds; replaced in tests.
    """

    name = "kubernetes"

    def __init__(
        self,
        cluster: str,
        options: KubernetesOptions,
        *,
        grace_s: float = 30.0,
        answer_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._options, self._grace_s, self._clock = cluster[:8], options, grace_s, clock
        access = find_cluster(options.kubeconfig, options.context)
        self.api = KubernetesApi(access, answer_s)
        self.namespace = options.namespace or access.namespace or "default"
        self._pods, self._secrets = (
            f"/api/v1/namespaces/{self.namespace}/{kind}" for kind in ("pods", "secrets")
        )
        self._secret = f"{prefix_of(cluster)}token"
        #: Whether the Secret is known to have this hub's token.
        self._secret_is_ours = False
        self._unreachable: frozenset[str] = frozenset()
        #: When pods that have ended were first seen so, by uid.
        self._ended_at: dict[str, float] = {}

    # -- before anything starts ------------------------------------------------------------------------

    def check(self) -> None:
        """InputError if the API is not reached, too old, or refuses what the adapter does."""
        try:
            self._check_version()
            nodes = self.nodes()
            if not nodes:
                raise InputError(self._no_nodes())
        except (EngineSilentError, EngineRefusedError) as error:
            raise InputError(str(error)) from None
        self.check_pods(self._manifest(Unit(name=f"{prefix_of('check')}0", node=nodes[0].node)))

    def check_pods(self, pod: Object) -> None:
        """InputError if the API is not reached, too old, or would refuse ``pod``; nothing is created."""
        try:
            self._check_version()
            answer = self.api.call("POST", self._pods, pod, query={"dryRun": "All"})
            # a quota may have room later
            if not answer.ok and not _is_quota(answer):
                raise self._refused(answer, "create pods")
            missing = [f"{verb} {kind}" for verb, kind in RIGHTS if not self._may(verb, kind)]
            if missing:
                raise InputError(
                    f"no right to {', '.join(missing)} in namespace {self.namespace} ({self.api.access.found}); {self._remedy()}"
                )
        except (EngineSilentError, EngineRefusedError) as error:
            raise InputError(str(error)) from None

    def _check_version(self) -> None:
        answer = self.api.call("GET", "/version")
        found = version_of(answer.body)
        if not answer.ok or found == (0, 0):
            raise InputError(
                f"{self.api.access.server} is no Kubernetes API: /version says {answer.status} {answer.message}"
            )
        if found < OLDEST:
            raise InputError(
                f"Kubernetes {found[0]}.{found[1]} at {self.api.access.server} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest release "
                "that Coadapt supports; update it, or use another context"
            )

    def _may(self, verb: str, kind: str) -> bool:
        question = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": self.namespace, "verb": verb, "resource": kind}},
        }
        answer = self.api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question)
        # an API that does not answer this question is asked by doing it
        return not answer.ok or bool((answer.body.get("status") or {}).get("allowed"))

    def _no_nodes(self) -> str:
        where = f" with {self._options.node_selector}" if self._options.node_selector else ""
        return (
            f"Kubernetes at {self.api.access.server} has no node{where} that has {self._options.gpu_resource} or cores; "
            "see 'kubectl get nodes', or give --engine-option gpu_resource=NAME"
        )

    # -- the contract ----------------------------------------------------------------------------------

    def nodes(self) -> list[EngineNode]:
        """Returns nodes with GPUs; if none has any, nodes with their cores. Those named by hand are not asked for."""
        if self._options.nodes:
            return [EngineNode(node=node) for node in named_nodes(self._options)]
        query = {"labelSelector": self._options.node_selector} if self._options.node_selector else {}
        try:
            listed = self.api.listing("/api/v1/nodes", query, "nodes")
        except EngineRefusedError as error:
            raise EngineRefusedError(
                f"{error}; an administrator gives this right by 'coadapt kubernetes manifest', or name nodes by hand: "
                "--engine-option nodes=gpu-1:8:a100,gpu-2:8:a100"
            ) from None
        self._unreachable = frozenset(_name(each) for each in listed if _is_unreachable(each))
        found = [self._with_gpus(each) for each in listed]
        if not any(found):
            found = [_with_cores(each) for each in listed]
        tolerations = (read_template(self._options).get("spec") or {}).get("tolerations") or []
        tolerations = [*tolerations, {"key": self._options.gpu_resource, "operator": "Exists"}]
        return [
            EngineNode(node=node, closed=_closed(each, tolerations))
            for each, node in zip(listed, found, strict=True)
            if node is not None
        ]

    def claim(self, unit: Unit) -> None:
        """Creates the Secret and the pod, unless they are there."""
        self._share_token(unit.environment["COADAPT_NODE_TOKEN"])
        self.create_pod(self._manifest(unit))

    def release(self, names: Sequence[str]) -> None:
        """Deletes pods: SIGTERM, the grace period of the pod, SIGKILL."""
        for name in names:
            self._delete(f"{self._pods}/{name}", f"delete pod {name}")

    def units(self) -> list[SeenUnit]:
        """Returns every pod of this cluster of ours."""
        query = {"labelSelector": f"{CLUSTER_LABEL}={self._cluster}"}
        found, ended = [], dict[str, float]()
        for pod in self.api.listing(self._pods, query, f"pods in namespace {self.namespace}"):
            seen = seen_unit(pod, self._unreachable)
            found.append(seen)
            if (pod.get("status") or {}).get("phase") in _FINAL and not _deleting(pod):
                uid = str(pod["metadata"].get("uid"))
                ended[uid] = self._ended_at.get(uid, self._clock())
                if self._clock() - ended[uid] > _KEPT_S:
                    self._delete(f"{self._pods}/{seen.name}", f"delete pod {seen.name}")
        self._ended_at = ended
        return found

    def script(self, unit: Unit) -> str:
        """Returns the pod in YAML, and the Secret without its content."""
        secret = {
            **_secret(self._secret, {}, {CLUSTER_LABEL: self._cluster}),
            "data": {TOKEN_KEY: "(not shown)"},
        }
        return yaml_text([secret, self._manifest(unit)])

    # -- for pilots, and for the end -------------------------------------------------------------------

    def create_pod(self, pod: Object) -> None:
        """Creates a pod, unless one of its name is there."""
        name = pod["metadata"]["name"]
        answer = self.api.call("POST", self._pods, pod)
        if answer.ok or answer.reason == "AlreadyExists":
            return
        if answer.status == 409:  # of the quota: somebody else changed it at the same time
            raise EngineSilentError(f"Kubernetes does not create pod {name} now: {answer.message}")
        raise self._refused(answer, f"create pod {name}")

    def create_secret(self, name: str, content: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Creates a Secret; returns False if one of its name is there."""
        answer = self.api.call("POST", self._secrets, _secret(name, content, labels))
        if not answer.ok and answer.reason != "AlreadyExists":
            raise self._refused(answer, f"create secret {name}")
        return answer.ok

    def delete_secret(self, name: str) -> None:
        """Deletes a Secret, if it is there."""
        self._delete(f"{self._secrets}/{name}", f"delete secret {name}")

    def clear(self) -> None:
        """Deletes what is left when all units have ended: their pods, and the Secret with the token."""
        self.release([unit.name for unit in self.units()])
        self.delete_secret(self._secret)

    # -- parts -----------------------------------------------------------------------------------------

    def _manifest(self, unit: Unit) -> Object:
        environment = {k: v for k, v in unit.environment.items() if k != "COADAPT_NODE_TOKEN"}
        if self._options.url:
            environment["COADAPT_URL"] = self._options.url
        return pod_manifest(
            unit.name,
            self._options,
            labels={CLUSTER_LABEL: self._cluster},
            node=unit.node,
            pinned=True,
            environment=environment,
            secret=self._secret,
            grace_s=self._grace_s,
        )

    def _share_token(self, token: str) -> None:
        """Sees to it that the Secret is there. It is not read: the right to read one is the right to read all."""
        content, labels = {TOKEN_KEY: token}, {CLUSTER_LABEL: self._cluster}
        if not self.create_secret(self._secret, content, labels) and not self._secret_is_ours:
            self.delete_secret(self._secret)  # of an earlier hub, whose token may have been another
            self.create_secret(self._secret, content, labels)
        self._secret_is_ours = True

    def _delete(self, path: str, what: str) -> None:
        # the grace period is that of the pod: a shorter one would take the object away before its processes
        answer = self.api.call("DELETE", path)
        if not answer.ok and answer.status not in (404, 409):
            raise self._refused(answer, what)

    def _refused(self, answer: Answer, what: str) -> EngineRefusedError:
        if answer.status == 403 and not _is_quota(answer):
            return refusal(answer, what, self._remedy())
        if answer.status == 404:
            return refusal(
                answer,
                what,
                f"name a namespace that exists ('kubectl get namespaces'), or 'kubectl create namespace {self.namespace}'",
            )
        return refusal(answer, what)

    def _remedy(self) -> str:
        return f"an administrator gives this right by 'coadapt kubernetes manifest -n {self.namespace} | kubectl apply -f -'"

    def _with_gpus(self, node: Object) -> Node | None:
        count = _quantity((node.get("status") or {}).get("allocatable", {}).get(self._options.gpu_resource))
        if count < 1:
            return None
        labels = node["metadata"].get("labels") or {}
        names = (self._options.gpu_type_label,) if self._options.gpu_type_label else _TYPE_LABELS
        kind = next((str(labels[name]) for name in names if labels.get(name)), "")
        return Node(name=_name(node), gpus=int(count), gpu_type=short_name(kind) if kind else "gpu")


def seen_unit(
    pod: Mapping[str, Any], unreachable: frozenset[str] = frozenset(), now: float | None = None
) -> SeenUnit:
    """Returns what a pod says of its unit; whether its processes are gone is for the lease to say.

    Args:
        pod: as the API has it.
        unreachable: nodes of which the control plane hears nothing.
        now: unix seconds; None: the present.
    """
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    phase, name = status.get("phase", "Pending"), _name(pod)
    if phase in _FINAL:
        return SeenUnit(name=name, state="ended", reason=_end_reason(status))
    if not spec.get("nodeName"):
        # never bound; the API binds no pod that is being deleted
        return SeenUnit(name=name, state="ended" if _deleting(pod) else "waiting", reason=_wait_reason(pod))
    if spec["nodeName"] in unreachable:
        return SeenUnit(name=name, state="ended", reason=f"node {spec['nodeName']} is unreachable")
    if _deleting(pod):
        # the time at which the grace period ends
        due = datetime.fromisoformat(
            str(pod["metadata"]["deletionTimestamp"]).replace("Z", "+00:00")
        ).timestamp()
        if (time.time() if now is None else now) - due > _STUCK_S:
            return SeenUnit(name=name, state="ended", reason=f"node {spec['nodeName']} does not remove it")
        return SeenUnit(name=name, state="ending", reason=_end_reason(status))
    if phase == "Running":
        return SeenUnit(name=name, state="running")
    return SeenUnit(name=name, state="waiting", reason=_wait_reason(pod))


def _wait_reason(pod: Mapping[str, Any]) -> str:
    """Why a pod does not run yet, in Kubernetes' own words."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    if gates := [str(each.get("name")) for each in spec.get("schedulingGates") or ()]:
        queue = (pod["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name", "")
        return f"not admitted yet{f' by queue {queue}' if queue else ''} (scheduling gate {', '.join(gates)})"
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return _words(waiting.get("reason"), waiting.get("message"))
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return _words(each.get("reason"), each.get("message"))
    return ""


def _end_reason(status: Mapping[str, Any]) -> str:
    """Why a pod ended or ends, in Kubernetes' own words."""
    for each in status.get("conditions") or ():
        if each.get("type") == "DisruptionTarget" and each.get("status") == "True":
            return _words(each.get("reason"), each.get("message"))
    if status.get("reason"):
        return _words(status.get("reason"), status.get("message"))
    for each in status.get("containerStatuses") or ():
        ended = (each.get("state") or {}).get("terminated") or {}
        if ended:
            return _words(
                f"{ended.get('reason') or 'Ended'} (exit code {ended.get('exitCode')})", ended.get("message")
            )
    return ""


def _words(reason: object, message: object) -> str:
    return " ".join(": ".join(str(each) for each in (reason, message) if each).split())[:300]


def _closed(node: Object, tolerations: Sequence[Mapping[str, Any]]) -> str:
    """Why nothing new may run on a node; empty: it may."""
    if len(_name(node)) > _LONGEST_NAME:
        return f"its name is longer than {_LONGEST_NAME} characters"
    if _deleting(node):
        return "is being removed"
    for each in (node.get("status") or {}).get("conditions") or ():
        if each.get("type") == "Ready" and each.get("status") != "True":
            return f"not ready: {_words(each.get('reason'), each.get('message'))}"
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return "cordoned"
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint.get('key')}{value}:{taint.get('effect')}"
    return ""


def _is_unreachable(node: Object) -> bool:
    taints = (node.get("spec") or {}).get("taints") or ()
    return any(taint.get("key") == _UNREACHABLE for taint in taints)


def _is_quota(answer: Answer) -> bool:
    return answer.status == 403 and "exceeded quota" in answer.message


def _with_cores(node: Object) -> Node | None:
    """A node without GPUs; one core is left to what runs on every node."""
    cores = math.floor(_quantity((node.get("status") or {}).get("allocatable", {}).get("cpu")))
    return Node(name=_name(node), gpus=max(cores - 1, 1), gpu_type="cpu") if cores >= 1 else None


def _secret(name: str, content: Mapping[str, str], labels: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": dict(labels)},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in content.items()},
    }


def _quantity(value: object) -> float:
    """A count as Kubernetes writes it: 4, "4", "3920m"; what is none is 0."""
    text = str(value if value is not None else 0)
    try:
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        return 0.0


def _deleting(found: Mapping[str, Any]) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def _name(found: Mapping[str, Any]) -> str:
    return str(found["metadata"]["name"])

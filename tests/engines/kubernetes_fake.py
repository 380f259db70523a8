"""A Kubernetes API in memory, for ``make test``: what Coadapt and its kubelets use, as the real one does it (``kubernetes_api_contract``).

It has a scheduler, quotas, rights by token, finalizers and scheduling gates. Tests play its other inhabitants: Kueue (``gated_queues``, ``admit``),
an administrator, an autoscaler (``taint``, ``evict``, ``remove_node``), a control plane that hears nothing of a node (``lose``).
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from coadapt.executors.engines.pod_manifest import tolerates
from tests.engines.kubernetes_cluster import NAMESPACE, Kubelets, write_kubeconfig
from tests.waiting import until

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
ADMIN = "token-of-the-administrator"
_PATH = re.compile(
    r"/(?:api/v1|apis/[\w.]+/v\w+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>\w+))?"
)
_VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_QUEUE = "kueue.x-k8s.io/queue-name"
_GATE, _FINALIZER = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/managed"


class RefusedError(Exception):
    """An answer that says no."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class FakeKubernetes:
    """The API, on loopback, without TLS."""

    def __init__(self, version: str = "1.20") -> None:
        self._lock = threading.RLock()
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._last = 0
        #: What each token may do: pairs of verb and resource, or None for everything.
        self.rights: dict[str, set[tuple[str, str]] | None] = {ADMIN: None}
        #: Most pods of a namespace.
        self.quota: dict[str, int] = {}
        #: Kueue's queues: their pods wait for ``admit``.
        self.gated_queues: set[str] = set()
        #: Requests so far, as "GET pods".
        self.requests: list[str] = []
        #: Answers with this status instead, if it is set; and every part of a list but the first has expired.
        self.broken: int | None = None
        self.expired = False
        #: Requests wait while it is not set.
        self.thawed = threading.Event()
        self.thawed.set()
        self._version = version
        for name in (NAMESPACE, "empty", "kube-node-lease", "kube-system"):
            self._put("namespaces", "", {"metadata": {"name": name}})
        self._server = self._serve()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    # -- requests -------------------------------------------------------------------------------------

    def _serve(self) -> ThreadingHTTPServer:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
                fake.thawed.wait()
                code, found = fake.answer(self.command, self.path, body, token)
                data = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do_PATCH = _answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # clients are killed in the midst of requests

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def close(self) -> None:
        self.thawed.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, target: str, body: Object | None, token: str) -> tuple[int, Object]:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with self._lock:
            try:
                return self._carry_out(method, parts.path, query, body or {}, token)
            except RefusedError as refused:
                return refused.code, refused.body

    def _carry_out(
        self, method: str, path: str, query: Mapping[str, str], body: Object, token: str
    ) -> tuple[int, Object]:
        if token not in self.rights:
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        if self.broken is not None:
            raise RefusedError(
                self.broken, "InternalError", "an error on the server has prevented the request"
            )
        if path == "/version":
            major, minor = self._version.split(".")
            return 200, {"major": major, "minor": minor, "gitVersion": f"v{self._version}.0"}
        match = _PATH.fullmatch(path)
        if match is None:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        namespace, kind, name, sub = (match[part] or "" for part in ("namespace", "kind", "name", "sub"))
        verb = _VERBS.get(method) or ("get" if name else "list")
        self.requests.append(f"{method} {kind}")
        if kind == "selfsubjectaccessreviews":
            wanted = body["spec"]["resourceAttributes"]
            allowed = self._may(token, wanted["verb"], wanted["resource"])
            return 201, {**body, "status": {"allowed": allowed}}
        if not self._may(token, verb, f"{kind}/{sub}" if sub else kind):
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            what = f'cannot {verb} resource "{kind}" in API group ""{where}'
            raise RefusedError(403, "Forbidden", f'{kind} is forbidden: User "{token}" {what}')
        if method == "GET":
            return 200, self._get(kind, namespace, name) if name else self._list(kind, namespace, query)
        if method == "POST":
            return 201, self._post(kind, namespace, name, sub, body, dry="dryRun" in query)
        if method == "PATCH":
            return 200, self._patch(kind, namespace, name, body)
        return 200, self._delete(kind, namespace, name, body)

    def _may(self, token: str, verb: str, kind: str) -> bool:
        rights = self.rights[token]
        return rights is None or (verb, kind) in rights

    def _get(self, kind: str, namespace: str, name: str) -> Object:
        found = self._objects.get((kind, namespace, name))
        if found is None:
            raise RefusedError(404, "NotFound", f'{kind} "{name}" not found')
        return deepcopy(found)

    def _list(self, kind: str, namespace: str, query: Mapping[str, str]) -> Object:
        self._schedule()
        found = [
            deepcopy(each)
            for (its_kind, its_namespace, _), each in sorted(self._objects.items())
            if its_kind == kind
            and (not namespace or its_namespace == namespace)
            and _has_labels(each, query.get("labelSelector", ""))
            and _has_fields(each, query.get("fieldSelector", ""))
        ]
        begin = int(query.get("continue") or 0)
        if begin and self.expired:
            raise RefusedError(
                410,
                "Expired",
                "The provided continue parameter is too old to display a consistent list result.",
            )
        end = begin + int(query.get("limit") or len(found) or 1)
        following = str(end) if end < len(found) else ""
        return {
            "kind": "List",
            "metadata": {"resourceVersion": str(self._last)} | ({"continue": following} if following else {}),
            "items": found[begin:end],
        }

    def _post(self, kind: str, namespace: str, name: str, sub: str, body: Object, *, dry: bool) -> Object:
        if sub == "eviction":
            return self._delete(kind, namespace, name, {})
        if namespace and ("namespaces", "", namespace) not in self._objects:
            raise RefusedError(404, "NotFound", f'namespaces "{namespace}" not found')
        name = str((body.get("metadata") or {}).get("name") or "")
        if not _NAME.fullmatch(name) or len(name) > 253:
            raise RefusedError(422, "Invalid", f'{kind} "{name}" is invalid: metadata.name: Invalid value')
        if kind == "pods":
            self._check_pod(namespace, name, body)
        if (kind, namespace, name) in self._objects:
            raise RefusedError(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if kind == "pods":
            pods = [key for key in self._objects if key[:2] == ("pods", namespace)]
            if len(pods) >= self.quota.get(namespace, len(pods) + 1):
                why = f"exceeded quota: pods, requested: pods=1, used: pods={len(pods)}, limited: pods={len(pods)}"
                raise RefusedError(403, "Forbidden", f'pods "{name}" is forbidden: {why}')
        made = deepcopy(body)
        if kind == "pods":
            made["status"] = {"phase": "Pending"}
            queue = (made["metadata"].get("labels") or {}).get(_QUEUE)
            if queue in self.gated_queues:
                made["spec"]["schedulingGates"] = [{"name": _GATE}]
                made["metadata"]["finalizers"] = [_FINALIZER]
        return made if dry else self._put(kind, namespace, made)

    def _check_pod(self, namespace: str, name: str, body: Object) -> None:
        containers = (body.get("spec") or {}).get("containers")
        if not containers or not all(each.get("image") and each.get("name") for each in containers):
            raise RefusedError(422, "Invalid", f'Pod "{name}" is invalid: spec.containers: Required value')

    def _put(self, kind: str, namespace: str, made: Object) -> Object:
        made["metadata"] |= {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": _now(),
            **({"namespace": namespace} if namespace else {}),
        }
        if kind == "nodes":
            made.setdefault("spec", {})
            made.setdefault("status", {})
        self._objects[(kind, namespace, made["metadata"]["name"])] = made
        self._changed(made)
        return deepcopy(made)

    def _changed(self, found: Object) -> None:
        self._last += 1
        found["metadata"]["resourceVersion"] = str(self._last)

    def _patch(self, kind: str, namespace: str, name: str, body: Object) -> Object:
        found = self._objects.get((kind, namespace, name))
        if found is None:
            raise RefusedError(404, "NotFound", f'{kind} "{name}" not found')
        uid = (body.get("metadata") or {}).get("uid", found["metadata"]["uid"])
        if uid != found["metadata"]["uid"]:
            raise RefusedError(409, "Conflict", f"the UID in the request ({uid}) does not match")
        _merge(found, body)
        self._changed(found)
        if found["metadata"].get("deletionTimestamp") and not found["metadata"].get(
            "deletionGracePeriodSeconds"
        ):
            self._remove_if_free(kind, namespace, found)
        return deepcopy(found)

    def _delete(self, kind: str, namespace: str, name: str, body: Object) -> Object:
        found = self._objects.get((kind, namespace, name))
        if found is None:
            raise RefusedError(404, "NotFound", f'{kind} "{name}" not found')
        uid = (body.get("preconditions") or {}).get("uid", found["metadata"]["uid"])
        if uid != found["metadata"]["uid"]:
            raise RefusedError(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        grace = 0
        if kind == "pods":
            own = found["spec"].get("terminationGracePeriodSeconds", 30)
            grace = int(body.get("gracePeriodSeconds", own))
            # what was never bound, or has ended, needs no time
            if not found["spec"].get("nodeName") or found["status"]["phase"] in ("Succeeded", "Failed"):
                grace = 0
            earlier = found["metadata"].get("deletionGracePeriodSeconds", grace)
            grace = min(grace, earlier)
        found["metadata"] |= {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": grace}
        self._changed(found)
        if grace == 0:
            self._remove_if_free(kind, namespace, found)
        return deepcopy(found)

    def _remove_if_free(self, kind: str, namespace: str, found: Object) -> None:
        if not found["metadata"].get("finalizers"):
            self._objects.pop((kind, namespace, found["metadata"]["name"]), None)

    # -- the scheduler --------------------------------------------------------------------------------

    def _schedule(self) -> None:
        pods = [each for key, each in self._objects.items() if key[0] == "pods"]
        nodes = [each for key, each in self._objects.items() if key[0] == "nodes"]
        for pod in pods:
            spec = pod["spec"]
            if (
                spec.get("nodeName")
                or spec.get("schedulingGates")
                or pod["metadata"].get("deletionTimestamp")
            ):
                continue
            faults = [(node, _why_not(pod, node, pods)) for node in nodes]
            fits = next((node for node, why in faults if not why), None)
            if fits is not None:
                spec["nodeName"] = fits["metadata"]["name"]
                condition = {"type": "PodScheduled", "status": "True"}
            else:
                whys = [why for _, why in faults]
                counts = ", ".join(f"{whys.count(why)} {why}" for why in sorted(set(whys)))
                message = f"0/{len(nodes)} nodes are available: {counts}."
                condition = {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                }
            _merge(pod, {"status": {"conditions": [condition]}})

    # -- other inhabitants ------------------------------------------------------------------------------

    def admit(self, name: str, namespace: str = NAMESPACE) -> None:
        """Kueue lets a pod through."""
        with self._lock:
            self._objects[("pods", namespace, name)]["spec"]["schedulingGates"] = []

    def unhold(self, name: str, namespace: str = NAMESPACE) -> None:
        """Removes the finalizers of a pod."""
        with self._lock:
            found = self._objects[("pods", namespace, name)]
            found["metadata"]["finalizers"] = []
            if found["metadata"].get("deletionGracePeriodSeconds") == 0:
                self._remove_if_free("pods", namespace, found)

    def taint(self, node: str, *taints: Object) -> None:
        """Replaces the taints of a node."""
        with self._lock:
            self._objects[("nodes", "", node)].setdefault("spec", {})["taints"] = list(taints)

    def lose(self, node: str) -> None:
        """The control plane hears nothing of a node any more."""
        with self._lock:
            self.taint(node, {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"})
            condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
            _merge(
                self._objects[("nodes", "", node)],
                {
                    "status": {
                        "conditions": [{**condition, "message": "Kubelet stopped posting node status."}]
                    }
                },
            )


def _why_not(pod: Object, node: Object, pods: list[Object]) -> str:
    spec, name = pod["spec"], node["metadata"]["name"]
    if node.get("spec", {}).get("unschedulable"):
        return "node(s) were unschedulable"
    for taint in node.get("spec", {}).get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerates(
            spec.get("tolerations") or (), taint
        ):
            return "node(s) had taints that the pod didn't tolerate"
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return "node(s) didn't match node selector"
    required = (spec.get("affinity") or {}).get("nodeAffinity", {})
    terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    if terms and not any(
        all(name in field["values"] for field in term.get("matchFields", ())) for term in terms
    ):
        return "node(s) didn't match node selector"
    have = int((node.get("status") or {}).get("allocatable", {}).get(GPU, 0))
    used = sum(
        _gpus(each)
        for each in pods
        if each["spec"].get("nodeName") == name and each["status"]["phase"] not in ("Succeeded", "Failed")
    )
    return f"Insufficient {GPU}" if used + _gpus(pod) > have else ""


def _gpus(pod: Object) -> int:
    return sum(
        int((c.get("resources") or {}).get("limits", {}).get(GPU, 0)) for c in pod["spec"]["containers"]
    )


def _has_labels(found: Object, selector: str) -> bool:
    labels = found["metadata"].get("labels") or {}
    return all(
        labels.get(key) == value
        for key, _, value in (each.partition("=") for each in selector.split(",") if each)
    )


def _has_fields(found: Object, selector: str) -> bool:
    return not selector or found["spec"].get("nodeName") == selector.removeprefix("spec.nodeName=")


def _merge(found: Object, change: Object) -> None:
    """A strategic merge patch: conditions are merged by their type, other lists replaced."""
    for key, value in change.items():
        if key == "conditions":
            kinds = {each["type"] for each in value}
            found[key] = [each for each in found.get(key) or () if each["type"] not in kinds] + deepcopy(
                value
            )
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            _merge(found[key], value)
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = deepcopy(value)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeCluster(Kubelets):
    """A fake API with kubelets that run pods as processes."""

    def __init__(self, directory: Path, nodes: int = 2, gpus: int = 2) -> None:
        directory.mkdir(parents=True)
        self.fake = FakeKubernetes()
        kubeconfig = write_kubeconfig(directory / "admin.kubeconfig", self.fake.url, ADMIN)
        super().__init__(directory, kubeconfig, nodes, gpus)

    def start(self) -> None:
        for name in self.names:
            self.start_node(name)
        until(self.is_ready, lambda: self.logs())

    def limited(self, path: Path, rights: set[tuple[str, str]]) -> Path:
        """The kubeconfig of a user who may do no more than this."""
        token = f"limited-{time.monotonic_ns()}"
        self.fake.rights[token] = rights
        return write_kubeconfig(path, self.fake.url, token, namespace=NAMESPACE)


@contextmanager
def fake_kubernetes(directory: Path, nodes: int = 2, gpus: int = 2) -> Iterator[FakeCluster]:
    """A running fake; nothing of it is left afterwards."""
    cluster = FakeCluster(directory, nodes, gpus)
    try:
        cluster.start()
        yield cluster
        cluster.clear()
    finally:
        cluster.stop()
        cluster.api.close()
        cluster.fake.close()

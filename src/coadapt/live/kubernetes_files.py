"""``coadapt kubernetes manifest``: a controller in a namespace, with the least rights that it needs.

A StatefulSet of one (two controllers would fight for one store), its home on a volume of its own, and a volume that controller and units share for
checkpoints. Units get no rights at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from coadapt.errors import InputError
from coadapt.executors import RIGHTS, kubernetes_options, yaml_text
from coadapt.plugins import assignments

PORT = 8642
_HOME, _SHARED, _TLS = "/var/lib/coadapt", "/shared", "/etc/coadapt/tls"
#: User of the image (``files/Containerfile``).
_USER = 1000
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_SIZE = re.compile(r"[1-9]\d*([KMGTP]i?)?")

Object = dict[str, Any]


def kubernetes_manifest(
    *,
    namespace: str,
    image: str,
    name: str = "coadapt",
    storage: str = "100Gi",
    storage_class: str = "",
    tls_secret: str = "",
    engine_settings: Sequence[str] = (),
) -> str:
    """Returns everything that a controller in a namespace needs, in YAML for ``kubectl apply``; InputError for impossible options.

    Args:
        namespace: where; it must exist.
        image: container image with coadapt, for the controller and, unless an option says otherwise, for units.
        name: of all objects.
        storage: size of the volume that controller and units share.
        storage_class: of that volume, which several nodes must be able to write; empty: the cluster's default.
        tls_secret: Secret (tls.crt, tls.key) for the API; empty: without TLS, inside the network of the pods.
        engine_settings: options of the engine, NAME=VALUE, see ``KubernetesOptions``.
    """
    for flag, value in (("--name", name), ("--namespace", namespace)):
        if not _NAME.fullmatch(value):
            raise InputError(
                f"{flag} {value[:80]!r} is no name: use lower-case letters, digits and '-', at most 40"
            )
    if not _SIZE.fullmatch(storage):
        raise InputError(f"--storage {storage!r} is no size, for example 100Gi")
    given = assignments(engine_settings)
    for fixed in ("namespace", "kubeconfig", "context", "url"):
        if fixed in given:
            raise InputError(f"--engine-option {fixed} is set by the manifest itself")
    scheme = "https" if tls_secret else "http"
    url = f"{scheme}://{name}.{namespace}.svc:{PORT}"
    engine = {"image": image, "volume": f"{name}-shared:{_SHARED}", **given, "url": url}
    kubernetes_options(engine)
    labels = {"app.kubernetes.io/name": "coadapt", "app.kubernetes.io/instance": name}
    objects = [
        *_rights(name, namespace, nodes="nodes" not in given),
        _claim(f"{name}-shared", storage, storage_class),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"name": scheme, "port": PORT, "targetPort": PORT}]},
        },
        _controller(name, image, labels, engine, tls_secret),
    ]
    for each in objects:
        if not each["kind"].startswith("Cluster"):
            each["metadata"]["namespace"] = namespace
        each["metadata"].setdefault("labels", labels)
    return yaml_text(objects)


def _rights(name: str, namespace: str, *, nodes: bool) -> list[Object]:
    rbac, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    kinds = dict.fromkeys(kind for _, kind in RIGHTS)
    rules = [
        {"apiGroups": [""], "resources": [kind], "verbs": [verb for verb, its in RIGHTS if its == kind]}
        for kind in kinds
    ]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    found: list[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": rbac, "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "subjects": [subject],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        },
    ]
    if nodes:
        # nodes are of no namespace; without this right they are named by hand (--engine-option nodes=...)
        whole = f"{namespace}-{name}-nodes"
        found += [
            {
                "apiVersion": rbac,
                "kind": "ClusterRole",
                "metadata": {"name": whole},
                "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}],
            },
            {
                "apiVersion": rbac,
                "kind": "ClusterRoleBinding",
                "metadata": {"name": whole},
                "subjects": [subject],
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": whole},
            },
        ]
    return found


def _claim(name: str, storage: str, storage_class: str, mode: str = "ReadWriteMany") -> Object:
    spec: Object = {"accessModes": [mode], "resources": {"requests": {"storage": storage}}}
    if storage_class:
        spec["storageClassName"] = storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def _controller(
    name: str, image: str, labels: Mapping[str, str], engine: Mapping[str, str], tls_secret: str
) -> Object:
    safe = (
        ["--tls-cert", f"{_TLS}/tls.crt", "--tls-key", f"{_TLS}/tls.key", "--listen", f"0.0.0.0:{PORT}"]
        if tls_secret
        else ["--listen", f"$(POD_IP):{PORT}", "--trusted-network", "$(POD_IP)/32"]
    )
    command = ["coadapt", "serve", "--executor", "kubernetes", *safe]
    command += ["--checkpoints", f"{_SHARED}/checkpoints"]
    command += [word for key, value in engine.items() for word in ("--engine-option", f"{key}={value}")]
    mounts = [{"name": "home", "mountPath": _HOME}, {"name": "shared", "mountPath": _SHARED}]
    volumes: list[Object] = [{"name": "shared", "persistentVolumeClaim": {"claimName": f"{name}-shared"}}]
    if tls_secret:
        mounts.append({"name": "tls", "mountPath": _TLS})
        volumes.append({"name": "tls", "secret": {"secretName": tls_secret}})
    container = {
        "name": "controller",
        "image": image,
        "command": command,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            # also for commands by 'kubectl exec'
            {"name": "COADAPT_HOME", "value": _HOME},
        ],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": PORT, "scheme": "HTTPS" if tls_secret else "HTTP"}
        },
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "volumeMounts": mounts,
    }
    home = _claim("home", "10Gi", "", "ReadWriteOnce")
    for unwanted in ("apiVersion", "kind"):
        del home[unwanted]
    pod = {
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "fsGroup": _USER},
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": 1,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
            "volumeClaimTemplates": [home],
        },
    }


def containerfile() -> str:
    """Returns the recipe of an image with coadapt, built from its wheel."""
    return (files("coadapt.live") / "files" / "Containerfile").read_text(encoding="utf-8")

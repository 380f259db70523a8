"""A real Kubernetes control plane on loopback for tests: etcd, API server, controller manager and scheduler, and kubelets that run pods
as processes (``kubernetes_kubelet``), in one directory, on ports of their own.

The binaries are built once by ``tests/engines/build-kubernetes`` and kept in the user's cache. Every daemon is a child of the test, and ended by its
pid. A node whose kubelet is gone is unreachable after 20 s. Works without root, containers and control groups.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from coadapt.errors import CoadaptError
from coadapt.executors.engines.kubeconfig import find_cluster
from coadapt.executors.engines.kubernetes_api import Answer, KubernetesApi
from coadapt.executors.node.processes import dies_with, started_ticks
from tests.engines.slurm_cluster import _free_ports
from tests.waiting import until

VERSION = "1.20.2"
BINARIES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
#: The namespace that tests use; "empty" has nothing in it.
NAMESPACE = "team"
ROOT = Path(__file__).parents[2]


def binaries() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "coadapt" / f"kubernetes-{VERSION}"


def why_not() -> str:
    """Why there can be no Kubernetes here; empty: there can."""
    missing = [name for name in BINARIES if not (binaries() / name).exists()]
    missing += [name for name in ("etcd", "openssl") if shutil.which(name) is None]
    return (
        f"Kubernetes is not built ({', '.join(missing)}); run tests/engines/build-kubernetes"
        if missing
        else ""
    )


class Kubelets:
    """Kubelets of a cluster whose API is up, real or fake; ``kubeconfig``: an administrator's."""

    def __init__(self, directory: Path, kubeconfig: Path, nodes: int = 2, gpus: int = 2) -> None:
        self.directory, self.kubeconfig = directory, kubeconfig
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self._gpus = gpus
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.api = KubernetesApi(find_cluster(str(kubeconfig)))

    # -- daemons --------------------------------------------------------------------------------------

    def start_node(self, name: str) -> None:
        offer = f"{name}:{self._gpus}:t4"
        command = (sys.executable, "-m", "tests.engines.kubernetes_kubelet", str(self.kubeconfig), offer)
        self._run(f"kubelet {name}", *command, str(self.directory))

    def kill(self, daemon: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kills a daemon, ``kubelet NODE`` among them."""
        self._daemons[daemon].send_signal(number)
        if number is signal.SIGKILL:
            self._daemons.pop(daemon).wait()

    def stop(self) -> None:
        """Ends all daemons; pods were ended before."""
        for name, process in reversed(list(self._daemons.items())):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            del self._daemons[name]
        for path in (self.directory / "pods").glob("*/pid"):  # whatever a test left
            pid, ticks = path.read_text().split()
            if str(started_ticks(int(pid))) == ticks:
                os.kill(int(pid), signal.SIGKILL)

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in [*self.directory.glob("log/*.log"), *self.directory.glob("pods/*/log")]
        )

    def _run(self, key: str, *command: str) -> None:
        (self.directory / "log").mkdir(exist_ok=True, parents=True)
        with (self.directory / "log" / f"{key.replace(' ', '-')}.log").open("ab") as log:
            self._daemons[key] = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),
            )

    # -- as an administrator ----------------------------------------------------------------------------

    def __call__(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        """A request as an administrator; repeated until the API answers."""
        found: list[Answer] = []

        def answered() -> bool:
            try:
                found.append(self.api.call(method, path, body, **more))
            except CoadaptError:
                return False
            return True

        until(answered, lambda: self.logs())
        return found[0]

    def pods(self, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        answer = self("GET", f"/api/v1/namespaces/{namespace}/pods")
        return list(answer.body["items"])

    def pod(self, name: str, namespace: str = NAMESPACE) -> Answer:
        return self("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def delete(self, name: str, *, force: bool = False, namespace: str = NAMESPACE) -> Answer:
        body = {"gracePeriodSeconds": 0} if force else None
        return self("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body)

    def cordon(self, node: str, closed: bool = True) -> None:
        body = {"spec": {"unschedulable": closed}}
        assert self("PATCH", f"/api/v1/nodes/{node}", body, content="application/merge-patch+json").ok

    def limited(self, path: Path, rights: set[tuple[str, str]]) -> Path:
        """The kubeconfig of a user who may do no more than this."""
        raise NotImplementedError

    def log_of(self, uid: str) -> str:
        path = self.directory / "pods" / uid / "log"
        return path.read_text() if path.exists() else ""

    def clear(self) -> None:
        """Ends all pods."""
        for namespace in (NAMESPACE, "empty"):
            for pod in self.pods(namespace):
                self.delete(pod["metadata"]["name"], namespace=namespace)
        until(lambda: not self.pods() and not self.pods("empty"), lambda: self.logs())

    def is_ready(self) -> bool:
        listed = self("GET", "/api/v1/nodes").body.get("items") or []
        return len(
            [
                node
                for node in listed
                if not (node["spec"].get("taints") or node["spec"].get("unschedulable"))
                and any(
                    c["type"] == "Ready" and c["status"] == "True"
                    for c in node["status"].get("conditions", ())
                )
            ]
        ) == len(self.names)


class KubernetesCluster(Kubelets):
    """Two nodes of two GPUs, unless said otherwise."""

    def __init__(self, directory: Path, nodes: int = 2, gpus: int = 2) -> None:
        directory.mkdir(parents=True)
        self._etcd, self._peer, self.port = _free_ports(3)
        self._keys(directory)
        self.admin_token = secrets.token_hex(16)
        (directory / "tokens.csv").write_text(f'{self.admin_token},admin,1,"system:masters"\n')
        kubeconfig = write_kubeconfig(
            directory / "admin.kubeconfig",
            f"https://127.0.0.1:{self.port}",
            self.admin_token,
            directory / "ca.crt",
        )
        super().__init__(directory, kubeconfig, nodes, gpus)

    def _keys(self, directory: Path) -> None:
        def openssl(*words: str) -> None:
            subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

        openssl("genrsa", "-out", "sa.key", "2048")
        openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
        openssl(
            *[
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-keyout",
                "ca.key",
                "-out",
                "ca.crt",
                "-days",
                "2",
                "-subj",
                "/CN=tests",
            ]
        )
        openssl(
            *[
                "req",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-keyout",
                "api.key",
                "-out",
                "api.csr",
                "-subj",
                "/CN=kube-apiserver",
            ]
        )
        (directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:kubernetes.default.svc\n")
        openssl(
            *[
                "x509",
                "-req",
                "-in",
                "api.csr",
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                "2",
                "-extfile",
                "names",
                "-out",
                "api.crt",
            ]
        )
        openssl(
            *[
                "req",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-keyout",
                "ada.key",
                "-out",
                "ada.csr",
                "-subj",
                "/CN=ada/O=people",
            ]
        )
        openssl(
            *[
                "x509",
                "-req",
                "-in",
                "ada.csr",
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                "2",
                "-out",
                "ada.crt",
            ]
        )

    def start(self) -> None:
        """Starts everything; returns when all nodes are ready and the namespace is there."""
        etcd = f"http://127.0.0.1:{self._etcd}"
        peer = f"http://127.0.0.1:{self._peer}"
        self._run(
            "etcd",
            *("etcd", "--data-dir", str(self.directory / "etcd"), "--listen-client-urls", etcd),
            *("--advertise-client-urls", etcd, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
        )
        self.start_api()
        for name in ("team", "empty"):
            made = self("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            assert made.ok, made
        for name in self.names:
            self.start_node(name)
        self._run(
            "kube-controller-manager",
            *(str(binaries() / "kube-controller-manager"), f"--kubeconfig={self.kubeconfig}"),
            *("--bind-address=127.0.0.1", "--port=0", "--secure-port=0", "--leader-elect=false"),
            *(
                f"--service-account-private-key-file={self.directory / 'sa.key'}",
                "--node-monitor-grace-period=20s",
            ),
            *("--node-monitor-period=1s", "--controllers=*,-nodeipam,-ttl,-horizontalpodautoscaling"),
        )
        self._run(
            "kube-scheduler",
            *(str(binaries() / "kube-scheduler"), f"--kubeconfig={self.kubeconfig}"),
            *("--bind-address=127.0.0.1", "--port=0", "--secure-port=0", "--leader-elect=false"),
        )
        until(self.is_ready, lambda: self.logs())

    def start_api(self) -> None:
        """Starts the API server; returns when it answers."""
        place = self.directory
        self._run(
            "kube-apiserver",
            str(binaries() / "kube-apiserver"),
            *(f"--etcd-servers=http://127.0.0.1:{self._etcd}", f"--secure-port={self.port}"),
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--cert-dir={place}"),
            *(f"--tls-cert-file={place / 'api.crt'}", f"--tls-private-key-file={place / 'api.key'}"),
            *(f"--client-ca-file={place / 'ca.crt'}", f"--token-auth-file={place / 'tokens.csv'}"),
            *(
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://kubernetes.default.svc",
            ),
            *(
                f"--service-account-key-file={place / 'sa.pub'}",
                f"--service-account-signing-key-file={place / 'sa.key'}",
            ),
            *(
                "--authorization-mode=RBAC",
                "--disable-admission-plugins=ServiceAccount",
                "--allow-privileged",
            ),
        )
        until(lambda: self("GET", "/api/v1/namespaces/kube-system").ok, lambda: self.logs())

    def account_kubeconfig(self, path: Path, account: str, namespace: str = NAMESPACE) -> Path:
        """A kubeconfig with a token that the API made for a service account."""
        request = {"spec": {"expirationSeconds": 3600}}
        made = self("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)
        assert made.ok, made
        token = made.body["status"]["token"]
        return write_kubeconfig(
            path, f"https://127.0.0.1:{self.port}", token, self.directory / "ca.crt", namespace
        )

    def limited(self, path: Path, rights: set[tuple[str, str]]) -> Path:
        """The kubeconfig of a service account that may do no more than this in the namespace."""
        self._last_account = getattr(self, "_last_account", 0) + 1
        name, rbac = f"limited-{self._last_account}", "/apis/rbac.authorization.k8s.io/v1"
        rules = [{"apiGroups": [""], "resources": [kind], "verbs": [verb]} for verb, kind in sorted(rights)]
        meta, base = {"metadata": {"name": name}}, f"/api/v1/namespaces/{NAMESPACE}"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        for path_, body in (
            (f"{base}/serviceaccounts", meta),
            (f"{rbac}/namespaces/{NAMESPACE}/roles", {**meta, "rules": rules}),
            (
                f"{rbac}/namespaces/{NAMESPACE}/rolebindings",
                {**meta, "subjects": [subject], "roleRef": role},
            ),
        ):
            made = self("POST", path_, body)
            assert made.ok, made
        return self.account_kubeconfig(path, name)

    def certificate_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig of user ada, who has a certificate and no rights."""
        user = {
            f"client-{kind}-data": base64.b64encode((self.directory / f"ada.{end}").read_bytes()).decode()
            for kind, end in (("certificate", "crt"), ("key", "key"))
        }
        return write_kubeconfig(
            path, f"https://127.0.0.1:{self.port}", "", self.directory / "ca.crt", user=user
        )


def write_kubeconfig(
    path: Path, server: str, token: str, ca: Path | None = None, namespace: str = "", user: object = None
) -> Path:
    cluster = {"server": server} | ({"certificate-authority": str(ca)} if ca else {})
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {"token": token}}],
        "contexts": [{"name": "tests", "context": context}],
        "current-context": "tests",
    }
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o600)
    return path


@contextmanager
def kubernetes(directory: Path, nodes: int = 2, gpus: int = 2) -> Iterator[KubernetesCluster]:
    """A running cluster; nothing of it is left afterwards."""
    cluster = KubernetesCluster(directory, nodes, gpus)
    try:
        cluster.start()
        yield cluster
        cluster.clear()
    finally:
        cluster.stop()

"""Where the API of a Kubernetes cluster is, and as whom to speak to it: the service account of this pod, or a kubeconfig.

Of a kubeconfig the current context (or a named one) counts. Understood are tokens, files with tokens, client certificates and exec
plug-ins, as cloud providers use them; anything else is refused in one line.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml

from coadapt.errors import InputError

#: Where a pod finds its service account.
_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Seconds that an exec plug-in may take, and before the end of a token at which it is asked for another.
_PLUGIN_S, _EARLY_S = 60.0, 60.0
#: What a user of a kubeconfig may hold and is not understood here.
_REFUSED = {
    "auth-provider": "the removed auth-provider; use the exec plug-in of your provider",
    "username": "a password, which no supported release accepts; use a token",
    "as": "impersonation; use a token of that user",
}


class Credentials(Protocol):
    """Says who is speaking."""

    def token(self, *, fresh: bool) -> str:
        """Returns the token for the next request, empty if a certificate says who it is; ``fresh``: the last one was not accepted."""


class ClusterAccess:
    """A cluster, by its address, and the identity to use there.

    Args:
        server: address of the API.
        credentials: who is speaking.
        found: where this comes from, for messages.
        namespace: that of the context; empty: none was set.
        ca: certificates to trust, in PEM; empty: the system's.
        insecure: whether the server's certificate is not looked at.
        tls_name: name in the server's certificate; empty: the host.
        certificate: certificate and key of a client, in PEM; None: a token says who it is.
    """

    def __init__(
        self,
        server: str,
        credentials: Credentials,
        *,
        found: str,
        namespace: str = "",
        ca: str = "",
        insecure: bool = False,
        tls_name: str = "",
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        self.server, self.credentials, self.found = server.rstrip("/"), credentials, found
        self.namespace, self.tls_name = namespace, tls_name
        self._ca, self._insecure, self._certificate = ca, insecure, certificate

    def tls(self) -> ssl.SSLContext | None:
        """Returns the settings of connections, None if they are not encrypted; InputError if certificates cannot be used."""
        if self.server.startswith("http:"):
            return None
        try:
            made = ssl.create_default_context(cadata=self._ca or None)
            if self._insecure:
                made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
            if self._certificate is not None:
                with _in_memory(self._certificate[0]) as chain, _in_memory(self._certificate[1]) as key:
                    made.load_cert_chain(chain, key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise InputError(f"{self.found}: its certificates cannot be used ({error})") from None
        return made


def find_cluster(
    kubeconfig: str = "",
    context: str = "",
    *,
    environment: Mapping[str, str] = os.environ,
    in_pod: Path = _IN_POD,
) -> ClusterAccess:
    """Returns the cluster that ``kubectl`` would use; in a pod, that of its service account. InputError if there is none.

    Args:
        kubeconfig: a file; empty: the service account, $KUBECONFIG or ~/.kube/config, in this order.
        context: of the kubeconfig; empty: its current one.
        environment: variables of this process.
        in_pod: directory of the service account.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not kubeconfig and not context and host and (in_pod / "token").exists():
        return _service_account(host, environment.get("KUBERNETES_SERVICE_PORT", "443"), in_pod)
    names = kubeconfig or environment.get("KUBECONFIG", "")
    paths = [Path(name).expanduser() for name in names.split(os.pathsep) if name]
    paths = paths or [Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"]
    there = [path for path in paths if path.is_file()]
    if not there:
        raise InputError(
            f"there is no kubeconfig {paths[0]}; name one by --engine-option kubeconfig=FILE or $KUBECONFIG, or run in a pod"
        )
    return _from_files(there, context)


def _service_account(host: str, port: str, directory: Path) -> ClusterAccess:
    try:
        namespace = (directory / "namespace").read_text().strip()
        ca = (directory / "ca.crt").read_text()
    except OSError as error:
        raise InputError(f"the service account in {directory} cannot be read: {error.strerror}") from None
    shown = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        f"https://{shown}:{port}",
        _TokenFile(directory / "token"),
        found="the service account of this pod",
        namespace=namespace,
        ca=ca,
    )


def _from_files(paths: Sequence[Path], context: str) -> ClusterAccess:
    """As kubectl merges several files: of entries with one name the first counts."""
    files = [(path, _read(path)) for path in paths]
    wanted = context or next(
        (name for _, file in files if isinstance(name := file.get("current-context"), str) and name), ""
    )
    entries = {kind: _entries(files, kind) for kind in ("contexts", "clusters", "users")}
    where = ", ".join(str(path) for path in paths)
    if wanted not in entries["contexts"]:
        known = ", ".join(sorted(entries["contexts"])) or "none"
        what = f"no context {wanted!r}" if wanted else "no current context"
        raise InputError(f"{where} has {what}; its contexts: {known} (--engine-option context=NAME)")
    path, chosen = entries["contexts"][wanted]
    found = f"context {wanted} of {path}"
    base, cluster = _named(entries["clusters"], chosen.get("cluster"), "cluster", found)
    home, user = _named(entries["users"], chosen.get("user"), "user", found)
    server = cluster.get("server")
    # without TLS only on this machine, as 'kubectl proxy' listens
    if not isinstance(server, str) or not re.match(r"https://[^/]|http://(127\.|localhost|\[::1\])", server):
        raise InputError(f"{found}: the server {server!r} is no address https://HOST:PORT")
    if cluster.get("proxy-url"):
        raise InputError(
            f"{found} has a proxy-url, which is not supported; run Coadapt where the API is reached directly"
        )
    for name, why in _REFUSED.items():
        if user.get(name):
            raise InputError(f"{found} uses {why}")
    ca = _data(cluster, "certificate-authority", base, found)
    certificate = _data(user, "client-certificate", home, found), _data(user, "client-key", home, found)
    return ClusterAccess(
        server,
        _credentials(user, home, found),
        found=found,
        namespace=str(chosen.get("namespace") or ""),
        ca=ca.decode(errors="replace"),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        tls_name=str(cluster.get("tls-server-name") or ""),
        certificate=certificate if all(certificate) else None,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise InputError(f"the kubeconfig {path} cannot be read: {why}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no kubeconfig: it must have clusters, users and contexts")
    return found


def _entries(
    files: Sequence[tuple[Path, Mapping[str, Any]]], kind: str
) -> dict[str, tuple[Path, dict[str, Any]]]:
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path, file in files:
        for entry in file.get(kind) or ():
            if isinstance(entry, dict) and isinstance(entry.get(kind[:-1]), dict):
                found.setdefault(str(entry.get("name")), (path, entry[kind[:-1]]))
    return found


def _named(
    entries: Mapping[str, tuple[Path, dict[str, Any]]], name: object, kind: str, found: str
) -> tuple[Path, dict[str, Any]]:
    try:
        path, entry = entries[str(name)]
    except KeyError:
        raise InputError(f"{found} names {kind} {name!r}, which is not there") from None
    return path.parent, entry


def _data(entry: Mapping[str, Any], name: str, base: Path, found: str) -> bytes:
    """The content of an entry NAME-data, or of the file that NAME names."""
    try:
        if inline := entry.get(f"{name}-data"):
            return base64.b64decode(str(inline), validate=True)
        if file := entry.get(name):
            return (base / str(file)).read_bytes()
    except (binascii.Error, OSError) as error:
        raise InputError(
            f"{found}: {name} cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    return b""


def _credentials(user: Mapping[str, Any], base: Path, found: str) -> Credentials:
    if file := user.get("tokenFile"):
        return _TokenFile(base / str(file))
    if token := user.get("token"):
        return _Token(str(token))
    if isinstance(plugin := user.get("exec"), dict):
        return _ExecPlugin(plugin, base, found)
    return _Token("")


class _Token:
    """A token that does not change; empty: a certificate says who it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def token(self, *, fresh: bool) -> str:
        return self._text


class _TokenFile:
    """A token in a file that somebody renews, as the kubelet does for service accounts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def token(self, *, fresh: bool) -> str:
        try:
            return self._path.read_text().strip()
        except OSError as error:
            raise InputError(f"the token in {self._path} cannot be read: {error.strerror}") from None


class _ExecPlugin:
    """A program that prints an ExecCredential with a token (client.authentication.k8s.io)."""

    def __init__(self, plugin: Mapping[str, Any], base: Path, found: str) -> None:
        command = str(plugin.get("command") or "")
        # as kubectl: a relative path begins at the kubeconfig, a mere name is looked up
        command = str(base / command) if os.sep in command else command
        self._command = [command, *(str(word) for word in plugin.get("args") or ())]
        self._variables = {
            str(each.get("name")): str(each.get("value"))
            for each in plugin.get("env") or ()
            if isinstance(each, dict)
        }
        self._version = str(plugin.get("apiVersion") or "")
        self._found, self._kept, self._until = found, "", float("inf")

    def token(self, *, fresh: bool) -> str:
        if fresh or not self._kept or time.time() > self._until - _EARLY_S:
            self._kept, self._until = self._ask()
        return self._kept

    def _ask(self) -> tuple[str, float]:
        request = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        variables = {
            **os.environ,
            **self._variables,
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode(),
        }
        try:
            done = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PLUGIN_S,
                check=False,
                env=variables,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(
                f"{self._found}: the exec plug-in {self._command[0]!r} does not run: {error}"
            ) from None
        if done.returncode != 0:
            said = " ".join(done.stderr.decode(errors="replace").split())[:200]
            raise InputError(f"{self._found}: the exec plug-in {self._command[0]!r} failed: {said}")
        try:
            answer = msgspec.json.decode(done.stdout, type=_ExecCredential)
            until = answer.status.expirationTimestamp
            ends = datetime.fromisoformat(until.replace("Z", "+00:00")).timestamp() if until else float("inf")
        except (msgspec.MsgspecError, ValueError) as error:
            raise InputError(
                f"{self._found}: the exec plug-in {self._command[0]!r} answers no ExecCredential: {error}"
            ) from None
        if not answer.status.token:
            raise InputError(
                f"{self._found}: the exec plug-in {self._command[0]!r} gives no token; certificates of plug-ins are not supported"
            )
        return answer.status.token, ends


class _ExecStatus(msgspec.Struct):
    token: str = ""
    expirationTimestamp: str = ""  # noqa: N815 - Kubernetes' name


class _ExecCredential(msgspec.Struct):
    status: _ExecStatus


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A path with this content, which is on no disk: OpenSSL reads keys from files only."""
    number = os.memfd_create("coadapt")
    try:
        os.write(number, data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)

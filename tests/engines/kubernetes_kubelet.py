"""A kubelet that runs pods as processes: ``python -m tests.engines.kubernetes_kubelet KUBECONFIG NODE:GPUS:TYPE DIR``.

What it keeps of a real one: it registers its node, renews lease and status, runs the first container of pods that are bound to its node,
reports phases and exit codes, sends SIGTERM to what is deleted, SIGKILL after the grace period, and removes an object only when
nothing of it runs. Pods outlive it (``kubernetes_pod_shim``), and the next one finds them. What it leaves out: images (there is one, IMAGE: this
machine), volumes, probes, networks, further containers.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coadapt.errors import CoadaptError
from coadapt.executors.engines.kubeconfig import find_cluster
from coadapt.executors.engines.kubernetes_api import KubernetesApi
from coadapt.executors.node.processes import started_ticks

#: The one image that can be had: this machine with its Python.
IMAGE = "coadapt:here"
GPU = "nvidia.com/gpu"
SHIM = Path(__file__).with_name("kubernetes_pod_shim.py")
_MERGE = "application/strategic-merge-patch+json"
_BEAT_S, _LOOK_S = 2.0, 0.05
Object = dict[str, Any]


class Pod:
    """A pod of this node: its processes, and what was said of it."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self._kubelet, meta = kubelet, pod["metadata"]
        self.uid, self.name, self.path = (
            meta["uid"],
            meta["name"],
            f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}",
        )
        self._namespace = meta["namespace"]
        self.spec, self.container = pod["spec"], pod["spec"]["containers"][0]
        self.place: Path = kubelet.directory / "pods" / str(self.uid)
        self.gpus = int((self.container.get("resources") or {}).get("limits", {}).get(GPU, 0))
        self._kill_at: float | None = None
        self._said: Object | None = None
        #: Why its end is not its own.
        self.reason = ""
        self._began = time.monotonic()

    @property
    def started(self) -> bool:
        return bool((self.place / "pid").exists() or (self.place / "exit").exists())

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        if (self.place / "exit").exists():
            return int((self.place / "exit").read_text())
        if (self.place / "pid").exists():
            pid, ticks = (self.place / "pid").read_text().split()
            if str(started_ticks(int(pid))) != ticks:
                # its last word may have been written in between
                return int((self.place / "exit").read_text()) if (self.place / "exit").exists() else 137
        return None

    def start(self) -> bool:
        """Starts the container, if it can be; else says why not."""
        if self.container.get("image") != IMAGE:
            self.say(
                "Pending",
                {"waiting": {"reason": "ErrImagePull", "message": f"no image {self.container.get('image')}"}},
            )
            return False
        environment = self._environment()
        if environment is None:
            self.say(
                "Pending",
                {"waiting": {"reason": "CreateContainerConfigError", "message": "secret not found"}},
            )
            return False
        self.place.mkdir(parents=True, exist_ok=True)
        (self.place / "node").write_text(self._kubelet.node)
        words = [*self.container.get("command", ()), *self.container.get("args", ())]
        command = [expanded(word, environment) for word in words]
        with (self.place / "log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, str(SHIM), str(self.place), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return True

    def _environment(self) -> dict[str, str] | None:
        scripts = str(Path(sys.executable).parent)
        found = {
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "HOME": str(self.place),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        fields = {
            "metadata.uid": self.uid,
            "metadata.name": self.name,
            "spec.nodeName": self._kubelet.node,
            "status.podIP": "127.0.0.1",
        }
        for each in self.container.get("env") or ():
            source = each.get("valueFrom") or {}
            if "fieldRef" in source:
                found[each["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                wanted = source["secretKeyRef"]
                answer = self._kubelet.api.call(
                    "GET", f"/api/v1/namespaces/{self._namespace}/secrets/{wanted['name']}"
                )
                if not answer.ok:
                    return None
                found[each["name"]] = base64.b64decode(answer.body["data"][wanted["key"]]).decode()
            else:
                found[each["name"]] = str(each.get("value") or "")
        return found

    def look(self, deleting: bool, grace_s: float) -> bool:
        """Does what is due; returns whether nothing of it is left to do."""
        now, code = time.monotonic(), self.code
        deadline = self.spec.get("activeDeadlineSeconds")
        if code is None and not self.reason and deadline and now - self._began > deadline:
            self.reason = "DeadlineExceeded"
            grace_s = float(self.spec.get("terminationGracePeriodSeconds", 30))
        if (deleting or self.reason) and self._kill_at is None and self.started:
            self._kill_at = now + grace_s
            self._signal(signal.SIGTERM)
        if code is None and self.started:
            if self._kill_at is not None and now > self._kill_at:
                self._signal(signal.SIGUSR1)
            self.say("Running", {"running": {}})
        elif code is not None:
            ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
            phase = "Succeeded" if code == 0 and not self.reason else "Failed"
            self.say(phase, {"terminated": ended}, self.reason)
        if deleting and (code is not None or not self.place.exists()):
            self._kubelet.remove(self.path, self.uid)
        return code is not None

    def say(self, phase: str, state: Object, reason: str = "") -> None:
        """Reports a phase, once."""
        ready = "True" if phase == "Running" else "False"
        status = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "hostIP": "127.0.0.1",
            "conditions": [{"type": kind, "status": ready} for kind in ("Ready", "ContainersReady")],
            "containerStatuses": [
                {
                    "name": self.container["name"],
                    "image": self.container.get("image", ""),
                    "imageID": "",
                    "ready": phase == "Running",
                    "restartCount": 0,
                    "state": state,
                }
            ],
        } | ({"reason": reason} if reason else {})
        if status != self._said:
            body = {"metadata": {"uid": self.uid}, "status": status}
            answer = self._kubelet.api.call("PATCH", f"{self.path}/status", body, content=_MERGE)
            if answer.ok or answer.status in (404, 409):
                self._said = status

    def _signal(self, number: signal.Signals) -> None:
        if (self.place / "pid").exists():
            with suppress(ProcessLookupError):
                os.kill(int((self.place / "pid").read_text().split()[0]), number)


class Kubelet:
    """One node."""

    def __init__(self, api: KubernetesApi, node: str, gpus: int, kind: str, directory: Path) -> None:
        self.api, self.node, self.directory = api, node, directory
        self._gpus, self._kind = gpus, kind
        self._pods: dict[str, Pod] = {}
        self._started: set[str] = set()

    def run(self) -> None:
        beat_at = 0.0
        self._found = False
        while True:
            try:
                if time.monotonic() > beat_at:
                    self._beat()
                    beat_at = time.monotonic() + _BEAT_S
                self._look()
            except CoadaptError as error:
                print(error, flush=True)  # the API is away: pods run on
            time.sleep(_LOOK_S)

    def _beat(self) -> None:
        have = {"cpu": "16", "memory": "8Gi", "pods": "110"} | ({GPU: str(self._gpus)} if self._gpus else {})
        status = {
            "capacity": have,
            "allocatable": have,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _now()}
            ],
        }
        path = f"/api/v1/nodes/{self.node}"
        answer = self.api.call("PATCH", f"{path}/status", {"status": status}, content=_MERGE)
        if answer.status == 404:
            labels = {"kubernetes.io/hostname": self.node, "accelerator": self._kind}
            self.api.call("POST", "/api/v1/nodes", {"metadata": {"name": self.node, "labels": labels}})
            self.api.call("PATCH", f"{path}/status", {"status": status}, content=_MERGE)
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.node, "leaseDurationSeconds": 40, "renewTime": _now(micro=True)}
        answer = self.api.call("PATCH", f"{leases}/{self.node}", {"spec": spec}, content=_MERGE)
        if answer.status == 404:
            self.api.call("POST", leases, {"metadata": {"name": self.node}, "spec": spec})

    def _look(self) -> None:
        query = {"fieldSelector": f"spec.nodeName={self.node}"}
        listed = {pod["metadata"]["uid"]: pod for pod in self.api.listing("/api/v1/pods", query, "pods")}
        for uid, pod in listed.items():
            deleting = "deletionTimestamp" in pod["metadata"]
            known = self._pods.get(uid)
            if known is None:
                known = self._pods[uid] = Pod(self, pod)
                final = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
                if known.started or deleting or final:
                    self._started.add(uid)  # of an earlier life of this kubelet, or never to be started
                elif self._used() > self._gpus:
                    known.say(
                        "Failed",
                        {"waiting": {"reason": "UnexpectedAdmissionError"}},
                        "UnexpectedAdmissionError",
                    )
                    self._started.add(uid)
            if uid not in self._started and not deleting and known.start():
                self._started.add(uid)
            known.look(deleting, float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
        for uid in [uid for uid in self._pods if uid not in listed]:
            # removed by force: what runs is ended all the same
            if not self._pods[uid].started or self._pods[uid].look(False, 0.0):
                del self._pods[uid]
            else:
                self._pods[uid].reason = "removed"

        if not self._found:
            self._found = True
            self._end_strangers(set(listed))

    def _end_strangers(self, known: set[str]) -> None:
        """Ends what an earlier kubelet of this node started, and the API does not know any more."""
        for place in (self.directory / "pods").glob("*"):
            owner = place / "node"
            if (
                place.name not in known
                and owner.exists()
                and owner.read_text() == self.node
                and (place / "pid").exists()
            ):
                pid, ticks = (place / "pid").read_text().split()
                if str(started_ticks(int(pid))) == ticks:
                    os.kill(int(pid), signal.SIGTERM)

    def _used(self) -> int:
        return sum(pod.gpus for pod in self._pods.values() if pod.code is None)

    def remove(self, path: str, uid: str) -> None:
        self.api.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """As Kubernetes does in commands: $(NAME) is a variable if there is one, $$ is a dollar."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)", value, text)


def _now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def main() -> None:
    node, gpus, kind = sys.argv[2].split(":")
    api = KubernetesApi(find_cluster(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are nobody's
    print(json.dumps({"node": node}), flush=True)
    Kubelet(api, node, int(gpus), kind, Path(sys.argv[3])).run()


if __name__ == "__main__":
    main()

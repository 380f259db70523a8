"""What Coadapt takes for granted of a Kubernetes API, held against the real one and the fake: subclass, and give a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coadapt.executors.engines._base import EngineRefusedError
from coadapt.executors.engines.kubeconfig import find_cluster
from coadapt.executors.engines.kubernetes_api import Answer, KubernetesApi, version_of
from tests.engines.kubernetes_cluster import NAMESPACE, Kubelets, write_kubeconfig
from tests.engines.kubernetes_kubelet import GPU, IMAGE
from tests.waiting import until

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
Object = dict[str, Any]


def a_pod(name: str, script: str = "sleep 600", gpus: int = 1, grace_s: int = 1, **meta: object) -> Object:
    container = {
        "name": "c",
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "resources": {"limits": {GPU: str(gpus)}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace_s,
            "containers": [container],
        },
    }


class KubernetesApiContract:
    """``cluster`` is set by a fixture; every test begins with no pods."""

    cluster: Kubelets

    def create(self, pod: Object, namespace: str = NAMESPACE, **query: str) -> Answer:
        return self.cluster("POST", f"/api/v1/namespaces/{namespace}/pods", pod, query=query)

    def phase(self, name: str) -> str:
        return str(self.cluster.pod(name).body.get("status", {}).get("phase", "gone"))

    def running(self, name: str, script: str = "sleep 600", **more: Any) -> Object:
        assert self.create(a_pod(name, script, **more)).status == 201
        until(lambda: self.phase(name) == "Running", lambda: (self.cluster.pod(name), self.cluster.logs()))
        return self.cluster.pod(name).body

    def test_version_has_two_numbers(self) -> None:
        assert version_of(self.cluster("GET", "/version").body) >= (1, 20)

    def test_second_pod_of_a_name_is_refused_as_existing(self) -> None:
        assert self.create(a_pod("one")).status == 201
        again = self.create(a_pod("one"))
        assert (again.status, again.reason) == (409, "AlreadyExists")

    def test_namespace_that_does_not_exist_refuses_pods_and_lists_none(self) -> None:
        made = self.create(a_pod("one"), namespace="none-such")
        assert (made.status, made.reason) == (404, "NotFound")
        assert 'namespaces "none-such" not found' in made.message
        dry = self.create(a_pod("one"), namespace="none-such", dryRun="All")
        assert dry.status == 404
        listed = self.cluster("GET", "/api/v1/namespaces/none-such/pods")
        assert (listed.status, listed.body["items"] or []) == (200, [])

    def test_dry_run_creates_nothing(self) -> None:
        assert self.create(a_pod("one"), dryRun="All").status == 201
        assert self.cluster.pods() == []

    def test_pod_that_is_none_is_invalid(self) -> None:
        pod = a_pod("one")
        del pod["spec"]["containers"][0]["image"]
        made = self.create(pod)
        assert (made.status, made.reason) == (422, "Invalid")
        assert self.create(a_pod("No_Name")).status == 422

    def test_pod_runs_and_its_exit_code_is_reported(self) -> None:
        assert self.create(a_pod("three", "exit 3")).status == 201
        until(lambda: self.phase("three") == "Failed", lambda: self.cluster.pod("three"))
        (state,) = self.cluster.pod("three").body["status"]["containerStatuses"]
        assert state["state"]["terminated"]["exitCode"] == 3

    def test_pod_that_fits_nowhere_says_why(self) -> None:
        assert self.create(a_pod("large", gpus=64)).status == 201

        def unschedulable() -> list[Object]:
            conditions = self.cluster.pod("large").body["status"].get("conditions", [])
            return [each for each in conditions if each.get("reason") == "Unschedulable"]

        until(lambda: bool(unschedulable()))
        (condition,) = unschedulable()
        assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
        assert condition["message"] == f"0/2 nodes are available: 2 Insufficient {GPU}."

    def test_deleted_pod_stays_until_its_processes_are_gone(self, tmp_path: Path) -> None:
        script = f"trap 'touch {tmp_path}/told' TERM; touch {tmp_path}/up; while test ! -e {tmp_path}/end; do sleep 0.1; done"
        before = self.running("slow", script, grace_s=600)
        until((tmp_path / "up").exists)
        assert self.cluster.delete("slow").status == 200
        until((tmp_path / "told").exists)
        now = self.cluster.pod("slow").body
        assert now["metadata"]["deletionTimestamp"]
        assert now["metadata"]["uid"] == before["metadata"]["uid"]
        assert now["status"]["phase"] == "Running"
        again = self.create(a_pod("slow"))
        assert (again.status, again.reason) == (409, "AlreadyExists")
        (tmp_path / "end").touch()
        until(lambda: self.cluster.pod("slow").status == 404)

    def test_pod_that_was_never_bound_is_removed_at_once(self) -> None:
        assert self.create(a_pod("large", gpus=64, grace_s=600)).status == 201
        assert self.cluster.delete("large").status == 200
        assert self.cluster.pod("large").status == 404
        assert self.cluster.delete("large").status == 404

    def test_forced_delete_frees_the_name_for_a_pod_with_another_uid(self) -> None:
        before = self.running("one", grace_s=600)
        assert self.cluster.delete("one", force=True).status == 200
        assert self.cluster.pod("one").status == 404
        assert self.create(a_pod("one")).status == 201
        assert self.cluster.pod("one").body["metadata"]["uid"] != before["metadata"]["uid"]

    def test_delete_of_another_uid_is_refused(self) -> None:
        assert self.create(a_pod("one")).status == 201
        body = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
        found = self.cluster("DELETE", f"{PODS}/one", body)
        assert (found.status, found.reason) == (409, "Conflict")

    def test_finalizer_keeps_a_pod_that_has_ended(self) -> None:
        self.running("held", finalizers=["tests/held"])
        self.cluster.delete("held")
        until(lambda: self.phase("held") in ("Succeeded", "Failed"), lambda: self.cluster.pod("held"))
        assert self.cluster.pod("held").body["metadata"]["deletionTimestamp"]
        patch = {"metadata": {"finalizers": None}}
        kind = "application/merge-patch+json"
        assert self.cluster("PATCH", f"{PODS}/held", patch, content=kind).ok
        until(lambda: self.cluster.pod("held").status == 404)

    def test_list_by_label_comes_in_parts(self) -> None:
        for number in range(5):
            label = "odd" if number % 2 else "even"
            assert self.create(a_pod(f"p{number}", gpus=64, labels={"coadapt/cluster": label})).ok
        query = {"labelSelector": "coadapt/cluster=even", "limit": "2"}
        first = self.cluster("GET", PODS, query=query).body
        assert [each["metadata"]["name"] for each in first["items"]] == ["p0", "p2"]
        rest = self.cluster("GET", PODS, query={**query, "continue": first["metadata"]["continue"]}).body
        assert [each["metadata"]["name"] for each in rest["items"]] == ["p4"]
        assert not rest["metadata"].get("continue")

    def test_cordoned_and_tainted_nodes_take_no_pod(self) -> None:
        merge = "application/merge-patch+json"
        self.cluster.cordon("n1")
        taints = [{"key": "team", "value": "others", "effect": "NoSchedule"}]
        assert self.cluster("PATCH", "/api/v1/nodes/n2", {"spec": {"taints": taints}}, content=merge).ok
        try:
            assert self.create(a_pod("one")).ok
            until(lambda: "0/2 nodes" in str(self.cluster.pod("one").body["status"]))
        finally:
            self.cluster.cordon("n1", False)
            assert self.cluster("PATCH", "/api/v1/nodes/n2", {"spec": {"taints": None}}, content=merge).ok
        until(lambda: self.phase("one") == "Running", lambda: self.cluster.pod("one"))

    def test_evicted_pod_goes_as_a_deleted_one(self, tmp_path: Path) -> None:
        script = (
            f"trap 'touch {tmp_path}/told; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"
        )
        self.running("one", script, grace_s=600)
        until((tmp_path / "up").exists)
        body = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": "one", "namespace": NAMESPACE},
        }
        assert self.cluster("POST", f"{PODS}/one/eviction", body).ok
        until(lambda: self.cluster.pod("one").status == 404)
        assert (tmp_path / "told").exists()

    def test_secret_is_created_once_and_deleted(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        secret = {"metadata": {"name": "contract"}, "data": {"token": "eA=="}}
        assert self.cluster("POST", path, secret).status == 201
        assert self.cluster("POST", path, secret).reason == "AlreadyExists"
        assert self.cluster("GET", f"{path}/contract").body["data"] == {"token": "eA=="}
        assert self.cluster("DELETE", f"{path}/contract").ok
        assert self.cluster("DELETE", f"{path}/contract").status == 404

    def test_user_without_rights_is_refused_and_can_ask_before(self, tmp_path: Path) -> None:
        user = KubernetesApi(find_cluster(str(self.cluster.limited(tmp_path / "k", {("list", "pods")}))))
        until(lambda: user.call("GET", PODS).ok)  # rights take a moment
        assert user.call("GET", PODS).ok
        refused = user.call("POST", PODS, a_pod("one"))
        assert (refused.status, refused.reason) == (403, "Forbidden")
        assert 'cannot create resource "pods"' in refused.message
        assert user.call("GET", "/api/v1/nodes").status == 403
        review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        for verb, allowed in (("list", True), ("create", False)):
            question = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"namespace": NAMESPACE, "verb": verb, "resource": "pods"}},
            }
            assert user.call("POST", review, question).body["status"]["allowed"] is allowed

    def test_unknown_token_is_refused(self, tmp_path: Path) -> None:
        server, ca = self.cluster.api.access.server, self.cluster.directory / "ca.crt"
        file = write_kubeconfig(tmp_path / "k", server, "nobody", ca if ca.exists() else None)
        with pytest.raises(
            EngineRefusedError, match=r"does not accept the identity of context tests of .*401"
        ):
            KubernetesApi(find_cluster(str(file))).call("GET", PODS)

"""What cannot be used is refused in one line that says what to do: kubeconfigs, clusters, rights, templates, options. On the fake API."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from coadapt.cli.main import run
from coadapt.errors import CoadaptError, InputError
from coadapt.executors.engines._base import EngineSilentError
from coadapt.executors.engines.kubeconfig import find_cluster
from coadapt.executors.engines.kubernetes import RIGHTS, KubernetesEngine, seen_unit
from coadapt.executors.engines.kubernetes_api import KubernetesApi, version_of
from coadapt.executors.engines.pod_manifest import (
    KubernetesOptions,
    kubernetes_options,
    pod_manifest,
    tolerates,
)
from coadapt.executors.kubernetes import remember_cluster
from coadapt.live import containerfile, kubernetes_manifest
from coadapt.model import Node
from coadapt.store.home import Home
from tests.engines.kubernetes_cluster import NAMESPACE, write_kubeconfig
from tests.engines.kubernetes_fake import ADMIN, FakeKubernetes
from tests.engines.kubernetes_kubelet import expanded


@contextmanager
def api(directory: Path, version: str = "1.20") -> Iterator[tuple[FakeKubernetes, Path]]:
    """A fake API with one node and no kubelets, and an administrator's kubeconfig."""
    fake = FakeKubernetes(version)
    node = {
        "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
        "spec": {},
        "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "63500m"}},
    }
    assert fake.answer("POST", "/api/v1/nodes", node, ADMIN)[0] == 201
    try:
        yield fake, write_kubeconfig(directory / "kubeconfig", fake.url, ADMIN)
    finally:
        fake.close()


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line by which a command is refused."""
    assert run(list(words)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def serve(capsys: pytest.CaptureFixture[str], home: Path, kubeconfig: Path, *more: str) -> str:
    options = [f"kubeconfig={kubeconfig}", "image=i", f"namespace={NAMESPACE}", *more]
    flags = [word for option in options for word in ("--engine-option", option)]
    text = said(capsys, "serve", "--home", str(home), "--executor", "kubernetes", *flags)
    assert not (home / "serve.json").exists(), "nothing half started remains"
    return text


# -- the cluster -----------------------------------------------------------------------------------------


def test_cluster_that_cannot_be_used_is_refused_by_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    with api(tmp_path) as (fake, kubeconfig):
        assert 'namespaces "none-such" not found (404); name a namespace that exists' in serve(
            capsys, home, kubeconfig, "namespace=none-such"
        )
        assert "has no context 'other'; its contexts: tests" in serve(
            capsys, home, kubeconfig, "context=other"
        )
        assert "has no node with pool=none" in serve(capsys, home, kubeconfig, "node_selector=pool=none")
        assert "there is no kubeconfig" in serve(capsys, home, tmp_path / "none")
        fake.rights["limited"] = {("list", "nodes"), ("create", "pods"), ("list", "pods")}
        limited = write_kubeconfig(tmp_path / "limited", fake.url, "limited")
        assert (
            "no right to delete pods, create secrets, delete secrets in namespace team (context tests of"
            in serve(capsys, home, limited)
        )
        fake.rights["limited"] = {each for each in RIGHTS if each != ("create", "pods")}
        text = serve(capsys, home, limited)
        assert 'nodes is forbidden: User "limited" cannot list resource "nodes"' in text
        assert "name nodes by hand: --engine-option nodes=gpu-1:8:a100" in text
        text = serve(capsys, home, limited, "nodes=gpu-1:8:a100")
        assert 'cannot create resource "pods"' in text
        assert "coadapt kubernetes manifest -n team | kubectl apply -f -" in text
    assert "does not answer: Connection refused" in serve(capsys, home, kubeconfig)


def test_release_that_is_too_old_is_refused(tmp_path: Path) -> None:
    with api(tmp_path, "1.19") as (_, kubeconfig):
        options = KubernetesOptions(kubeconfig=str(kubeconfig), image="i", namespace=NAMESPACE)
        with pytest.raises(
            InputError, match=r"Kubernetes 1\.19 at .* is older than 1\.20, the oldest release"
        ):
            KubernetesEngine("", options).check()
    assert version_of({"major": "1", "minor": "27+"}) == (1, 27)


def test_pods_are_looked_for_where_they_were_created(tmp_path: Path) -> None:
    with api(tmp_path) as (fake, kubeconfig):

        def engine(namespace: str) -> KubernetesEngine:
            return KubernetesEngine(
                "", KubernetesOptions(kubeconfig=str(kubeconfig), image="i", namespace=namespace)
            )

        home = Home(tmp_path / "home")
        remember_cluster(home, engine(NAMESPACE))
        remember_cluster(home, engine(NAMESPACE))
        with pytest.raises(
            InputError, match=rf"are in namespace team at {fake.url}, but .* leads to namespace empty"
        ):
            remember_cluster(home, engine("empty"))


def test_api_that_answers_nonsense_is_silent_and_never_empty(tmp_path: Path) -> None:
    with api(tmp_path) as (fake, kubeconfig):
        options = KubernetesOptions(kubeconfig=str(kubeconfig), image="i", namespace=NAMESPACE)
        engine = KubernetesEngine("x", options, answer_s=1.0)
        assert engine.units() == []
        for status in (429, 500, 503):
            fake.broken = status
            for ask in (engine.units, engine.nodes):
                with pytest.raises(EngineSilentError, match=f"does not answer GET /api/v1/.*{status}"):
                    ask()
        fake.broken = None
        fake.thawed.clear()
        with pytest.raises(EngineSilentError, match="no answer within 1 s"):
            engine.units()
        fake.thawed.set()
        assert engine.units() == []


# -- kubeconfigs -----------------------------------------------------------------------------------------


def kubeconfig(path: Path, user: dict[str, Any], **cluster: Any) -> Path:
    write_kubeconfig(path, "https://h:1", "", user=user or {"x": 1})
    content = yaml.safe_load(path.read_text())
    content["clusters"][0]["cluster"] |= cluster
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("user", "cluster", "message"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "uses the removed auth-provider; use the exec plug-in"),
        ({"username": "a", "password": "b"}, {}, "uses a password"),
        ({"token": "t"}, {"server": "http://example.com"}, "is no address https://HOST:PORT"),
        ({"token": "t"}, {"proxy-url": "http://p"}, "has a proxy-url, which is not supported"),
        (
            {"token": "t"},
            {"certificate-authority": "none.crt"},
            "certificate-authority cannot be read (No such file",
        ),
        ({"client-certificate-data": "!!", "client-key-data": "!!"}, {}, "client-certificate cannot be read"),
    ],
)
def test_kubeconfig_that_is_not_understood_is_refused(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], message: str
) -> None:
    path = kubeconfig(tmp_path / "k", user, **cluster)
    with pytest.raises(InputError) as refused:
        find_cluster(str(path))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "cannot be read"),
        ("- 1", "is no kubeconfig"),
        ("contexts: []", "has no current context; its contexts: none"),
        (
            "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]",
            "names cluster 'c', which is not there",
        ),
    ],
)
def test_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(InputError, match=message):
        find_cluster(str(tmp_path / "k"))


def test_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    data = base64.b64encode(b"no certificate").decode()
    path = kubeconfig(tmp_path / "k", {"client-certificate-data": data, "client-key-data": data})
    with pytest.raises(InputError, match="its certificates cannot be used"):
        find_cluster(str(path)).tls()


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    one = write_kubeconfig(tmp_path / "one", "https://one:1", "t", namespace="first")
    two = write_kubeconfig(tmp_path / "two", "https://two:1", "t")
    found = find_cluster(environment={"KUBECONFIG": f"{tmp_path}/none:{one}:{two}", "HOME": str(tmp_path)})
    assert (found.server, found.namespace) == ("https://one:1", "first")


def test_pod_uses_its_service_account_and_reads_the_token_again(tmp_path: Path) -> None:
    for name, text in (("token", "first\n"), ("ca.crt", ""), ("namespace", "team\n")):
        (tmp_path / name).write_text(text)
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    found = find_cluster(environment=environment, in_pod=tmp_path)
    assert (found.server, found.namespace) == ("https://10.0.0.1:443", "team")
    assert found.credentials.token(fresh=False) == "first"
    (tmp_path / "token").write_text("second")  # as the kubelet does every hour
    assert found.credentials.token(fresh=False) == "second"


def test_exec_plugin_is_asked_once_until_its_token_is_refused(tmp_path: Path) -> None:
    with api(tmp_path) as (fake, _):
        count, plugin = tmp_path / "count", tmp_path / "plugin.py"
        plugin.write_text(
            "import json, os, sys\n"
            "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
            f"open({str(count)!r}, 'a').write('x')\n"
            f"print(json.dumps({{'status': {{'token': sys.argv[1] + open({str(count)!r}).read()}}}}))\n"
        )
        user = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": sys.executable,
                "args": [str(plugin), "t"],
            }
        }
        client = KubernetesApi(find_cluster(str(write_kubeconfig(tmp_path / "k", fake.url, "", user=user))))
        fake.rights["tx"] = None
        assert client.call("GET", "/api/v1/nodes").ok
        assert client.call("GET", "/api/v1/nodes").ok
        assert count.read_text() == "x"
        del fake.rights["tx"]
        fake.rights["txx"] = None
        assert client.call("GET", "/api/v1/nodes").ok
        assert count.read_text() == "xx"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "failed: "),
        ("echo '{}'", "answers no ExecCredential"),
        ('echo \'{"status": {"clientCertificateData": "x"}}\'', "gives no token; certificates of plug-ins"),
    ],
)
def test_exec_plugin_that_gives_no_token_is_told(tmp_path: Path, script: str, message: str) -> None:
    user = {"exec": {"command": "sh", "args": ["-c", script]}}
    found = find_cluster(str(kubeconfig(tmp_path / "k", user)))
    with pytest.raises(InputError, match=message):
        found.credentials.token(fresh=False)
    with pytest.raises(CoadaptError, match=message):
        KubernetesApi(found).call("GET", "/version")


# -- options and templates -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"imgae": "x"}, "unknown field `imgae`; Kubernetes takes namespace, kubeconfig"),
        ({"namespace": "No Space"}, "is no name of a namespace"),
        ({"volume": "data"}, "is not CLAIM:PATH, for example data:/data"),
        ({"node_selector": "gpu"}, "is not LABEL=VALUE, for example pool=gpu"),
        ({"nodes": "gpu-1"}, "is not NAME:GPUS:TYPE, for example gpu-1:8:a100"),
        ({"nodes": "gpu-1:0:a100"}, "is not NAME:GPUS:TYPE"),
        ({"template": "pod.yaml"}, "--engine-option template=pod.yaml must be an absolute path: /"),
        ({"template": "/none"}, "the pod template /none cannot be read: No such file"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as refused:
        kubernetes_options(options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Job", "must be one Pod"),
        ("spec: {containers: {}}", "spec must hold a list of containers"),
        ("spec: {restartPolicy: Always}", "a pod that starts again is refused: use Never"),
        ("spec: {nodeName: n1}", "sets nodeName; Coadapt chooses the node"),
        ("spec: {containers: [1]}", "every container must be a mapping"),
        ("a: [", "cannot be read"),
    ],
)
def test_impossible_templates_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pod.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        kubernetes_options({"template": str(tmp_path / "pod.yaml")})


def made(options: KubernetesOptions, node: Node) -> dict[str, Any]:
    return pod_manifest(
        "p",
        options,
        labels={"l": "v"},
        node=node,
        pinned=True,
        environment={"A": "1"},
        secret="s",
        grace_s=30.0,
    )


def test_template_is_kept_but_for_what_coadapt_sets(tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text(
        """
apiVersion: v1
kind: Pod
metadata: {name: mine, namespace: elsewhere, labels: {cost: 'a', l: 'other'}}
spec:
  securityContext: {runAsUser: 7}
  tolerations: [{key: team, operator: Exists}]
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: z, operator: Exists}]}, {}]}}}
  containers:
  - {name: mine, image: img, command: [x], args: [y], env: [{name: A, value: '0'}, {name: B, value: '2'}], resources: {limits: {memory: 1Gi}}}
  - {name: sidecar, image: other}
"""
    )
    options = KubernetesOptions(template=str(template), queue="gold", prelude='echo "$(hostname) $$"')
    pod = made(options, Node(name="gpu-1", gpus=8, gpu_type="a100"))
    assert pod["metadata"]["name"] == "p"
    assert "namespace" not in pod["metadata"]
    assert pod["metadata"]["labels"] == {
        "cost": "a",
        "l": "v",
        "app.kubernetes.io/name": "coadapt",
        "kueue.x-k8s.io/queue-name": "gold",
    }
    spec = pod["spec"]
    assert spec["securityContext"] == {"runAsUser": 7}
    assert not spec["automountServiceAccountToken"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    wish = [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]
    assert [term["matchFields"] for term in terms] == [wish, wish]
    agent, sidecar = spec["containers"]
    assert sidecar == {"name": "sidecar", "image": "other"}
    assert (agent["name"], agent["image"]) == ("mine", "img")
    assert "args" not in agent
    assert agent["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": "8"}
    values = {each["name"]: each.get("value") for each in agent["env"]}
    assert values == {"A": "1", "B": "2", "COADAPT_POD_UID": None, "COADAPT_NODE_TOKEN": None}
    # Kubernetes replaces what looks like its variables before the shell sees it
    assert 'echo "$(hostname) $$"' in expanded(agent["command"][2], {})


def test_image_is_needed() -> None:
    with pytest.raises(InputError, match="no container image: give --engine-option image=NAME"):
        made(KubernetesOptions(), Node(name="n", gpus=1, gpu_type="t4"))


def test_node_without_gpus_is_asked_for_cores_and_one_is_left(tmp_path: Path) -> None:
    with api(tmp_path) as (fake, kubeconfig):
        fake.answer("DELETE", "/api/v1/nodes/gpu-1", None, ADMIN)
        node = {"metadata": {"name": "c1"}, "spec": {}, "status": {"allocatable": {"cpu": "3920m"}}}
        fake.answer("POST", "/api/v1/nodes", node, ADMIN)
        options = KubernetesOptions(kubeconfig=str(kubeconfig), image="i")
        (found,) = KubernetesEngine("", options).nodes()
        assert (found.node.name, found.node.gpus, found.node.gpu_type) == ("c1", 2, "cpu")
        resources = made(options, found.node)["spec"]["containers"][0]["resources"]
        assert resources == {"requests": {"cpu": "2"}}


def test_type_of_gpus_is_read_from_labels(tmp_path: Path) -> None:
    with api(tmp_path) as (_, kubeconfig):
        (found,) = KubernetesEngine("", KubernetesOptions(kubeconfig=str(kubeconfig), image="i")).nodes()
        assert (found.node.gpus, found.node.gpu_type) == (8, "a100")


@pytest.mark.parametrize(
    ("spec", "closed"),
    [
        ({}, ""),
        ({"unschedulable": True}, "cordoned"),
        ({"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}, ""),
        ({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}, ""),
        ({"taints": [{"key": "x", "value": "y", "effect": "NoExecute"}]}, "taint x=y:NoExecute"),
    ],
)
def test_node_is_closed_by_what_administrators_and_control_planes_do(
    tmp_path: Path, spec: dict[str, Any], closed: str
) -> None:
    with api(tmp_path) as (fake, kubeconfig):
        fake.answer("PATCH", "/api/v1/nodes/gpu-1", {"spec": spec}, ADMIN)
        (found,) = KubernetesEngine("", KubernetesOptions(kubeconfig=str(kubeconfig), image="i")).nodes()
        assert found.closed == closed


def test_tolerations_are_read_as_the_scheduler_does() -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert tolerates([{"operator": "Exists"}], taint)
    assert tolerates([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}], taint)
    assert tolerates([{"key": "k", "value": "v"}], taint)
    assert not tolerates([{"key": "k", "value": "w"}], taint)
    assert not tolerates([{"key": "k", "operator": "Exists", "effect": "NoExecute"}], taint)
    assert not tolerates([], taint)


@pytest.mark.parametrize(
    ("pod", "state", "reason"),
    [
        ({"status": {"phase": "Pending"}}, "waiting", ""),
        (
            {
                "status": {
                    "phase": "Pending",
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "reason": "Unschedulable",
                            "message": "0/2",
                        }
                    ],
                }
            },
            "waiting",
            "Unschedulable: 0/2",
        ),
        (
            {
                "spec": {"nodeName": "n"},
                "status": {
                    "phase": "Pending",
                    "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
                },
            },
            "waiting",
            "ImagePullBackOff",
        ),
        (
            {
                "spec": {"nodeName": "n"},
                "status": {
                    "phase": "Pending",
                    "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}],
                },
            },
            "waiting",
            "",
        ),
        ({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}}, "running", ""),
        ({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}, "deleted": 1}, "ending", ""),
        ({"spec": {"nodeName": "n"}, "status": {"phase": "Pending"}, "deleted": 1}, "ending", ""),
        ({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}, "deleted": 119}, "ending", ""),
        (
            {"spec": {"nodeName": "n"}, "status": {"phase": "Running"}, "deleted": 121},
            "ended",
            "node n does not remove it",
        ),
        ({"status": {"phase": "Pending"}, "deleted": 1}, "ended", ""),
        ({"spec": {"nodeName": "lost"}, "status": {"phase": "Running"}}, "ended", "node lost is unreachable"),
        (
            {"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}},
            "ended",
            "Evicted: low on memory",
        ),
        (
            {
                "status": {
                    "phase": "Failed",
                    "conditions": [
                        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
                    ],
                }
            },
            "ended",
            "PreemptionByScheduler",
        ),
        (
            {
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [
                        {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                    ],
                }
            },
            "ended",
            "OOMKilled (exit code 137)",
        ),
    ],
)
def test_pod_is_read_as_a_unit(pod: dict[str, Any], state: str, reason: str) -> None:
    due = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if (since := pod.pop("deleted", 0)) else {}
    pod["metadata"] = {"name": "u", **due}
    seen = seen_unit(pod, frozenset(["lost"]), 1767225600.0 + since)
    assert (seen.name, seen.state, seen.reason) == ("u", state, reason)


# -- files and pods for people ---------------------------------------------------------------------------


def test_manifest_asks_for_no_more_rights_than_the_adapter_uses() -> None:
    objects = list(yaml.safe_load_all(kubernetes_manifest(namespace="team", image="i:1")))
    rules = {each["kind"]: each["rules"] for each in objects if "rules" in each}
    assert {
        (verb, kind) for rule in rules["Role"] for kind in rule["resources"] for verb in rule["verbs"]
    } == set(RIGHTS)
    assert rules["ClusterRole"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    text = kubernetes_manifest(
        namespace="team", image="i:1", engine_settings=["nodes=a:8:t4"], tls_secret="t"
    )
    assert "kind: Cluster" not in text
    assert "url=https://coadapt.team.svc:8642" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("kubernetes", "manifest", "-n", "No", "--image", "i"), "--namespace 'No' is no name"),
        (
            ("kubernetes", "manifest", "-n", "t", "--image", "i", "--storage", "many"),
            "is no size, for example 100Gi",
        ),
        (
            ("kubernetes", "manifest", "-n", "t", "--image", "i", "--engine-option", "url=x"),
            "--engine-option url is set by the manifest itself",
        ),
        (("up", "--kubernetes", "--slurm"), "name one engine"),
        (("up", "--kubernetes", "-p", "gpu"), "--kubernetes does not take --partition"),
        (
            ("up", "--kubernetes", "--image", "i"),
            "must be told how many GPUs each pod gets, for example --gpus 8",
        ),
        (("up", "--kubernetes", "--image", "i", "--gpus", "0"), "say how many cores each pod gets"),
        (("up", "--kubernetes", "--image", "i", "--gpus", "1", "-t", "5s"), "--time 5s is too short"),
        (("up", "--kubernetes", "--gpus", "1", "--dry-run"), "no container image"),
    ],
)
def test_impossible_wishes_are_refused_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in said(capsys, *words)


def test_recipe_of_the_image_installs_the_wheel_for_the_user_of_the_manifest() -> None:
    text = containerfile()
    assert "COPY dist/coadapt-*.whl" in text
    assert "USER 1000" in text
    (controller,) = [
        each
        for each in yaml.safe_load_all(kubernetes_manifest(namespace="team", image="i:1"))
        if each["kind"] == "StatefulSet"
    ]
    assert controller["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 1000

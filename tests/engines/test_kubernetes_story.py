"""Kubernetes as its users see it: the walk-through of docs/engines.md as it is written, the manifest, pods as a cluster. On a real control plane."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from coadapt.executors.engines.kubeconfig import find_cluster
from coadapt.executors.engines.kubernetes_api import KubernetesApi
from tests.engines.kubernetes_cluster import NAMESPACE, KubernetesCluster
from tests.engines.kubernetes_kubelet import IMAGE
from tests.engines.machines import COADAPT, joined
from tests.integration.serving import Served, serving
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kubernetes")]
PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


@pytest.fixture
def served(
    running_kubernetes: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    monkeypatch.setenv("KUBECONFIG", str(running_kubernetes.kubeconfig))
    with serving(tmp_path) as made:
        yield made
        # pods of a pilot are the user's to give back
        running_kubernetes.clear()


def shown(command: str) -> list[list[str]]:
    """Commands of the block of the page in which ``command`` is, with the image, addresses and places of the test."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Kubernetes\n")[2]
    blocks = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    (block,) = [each for each in blocks if command in each]
    text = (
        block.replace("registry.example/coadapt:0.1.0", IMAGE)
        .replace("10.1.0.1:8642", "127.0.0.1:0")
        .replace(" --trusted-network 10.1.0.0/16", "")
        .replace(" --checkpoints /shared/coadapt", "")
    )
    return [
        shlex.split(line.removeprefix("$ coadapt "))
        for line in text.splitlines()
        if line.startswith("$ coadapt")
    ]


def place_of(each: dict[str, Any]) -> str:
    """The path of a kind of object."""
    group, space = each["apiVersion"], each["metadata"].get("namespace")
    base = f"/apis/{group}" if "/" in group else f"/api/{group}"
    return (
        f"{base}/namespaces/{space}/{each['kind'].lower()}s" if space else f"{base}/{each['kind'].lower()}s"
    )


@contextmanager
def applied(cluster: KubernetesCluster, text: str) -> Iterator[list[dict[str, Any]]]:
    """As 'kubectl apply -f -' of objects that are not there yet, and 'kubectl delete' of them afterwards."""
    objects = list(yaml.safe_load_all(text))
    try:
        for each in objects:
            made = cluster("POST", place_of(each), each)
            assert made.ok, (each, made)
        yield objects
    finally:
        for each in reversed(objects):
            cluster(
                "DELETE", f"{place_of(each)}/{each['metadata']['name']}", {"propagationPolicy": "Background"}
            )


def a_job(path: Path) -> None:
    (path / "code").mkdir()
    (path / "code" / "train.sh").write_text('echo "$RANK of $WORLD_SIZE"\n')
    (path / "train.yaml").write_text(
        f"name: train\nworkdir: {path / 'code'}\nrun: sh train.sh\nresources: {{accelerators: 3}}\nepochs: 1\n"
    )


def test_walk_through_works_as_it_is_written(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running_kubernetes: KubernetesCluster
) -> None:
    a_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = {}
    for command in shown("coadapt serve --executor kubernetes"):
        # the GPUs of these nodes are only counted; and however slow the machine is, they are given back by 'down'
        extra = {"serve": ["--engine-option", "virtual=true", "--idle", "1h"], "submit": ["--yes"]}.get(
            command[0], []
        )
        done = served.coadapt(*command, *extra)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        said[command[0]] = done.stdout
    assert {"n1", "n2"} <= set(said["nodes"].split())
    assert "of 3" in said["logs"]
    assert "Deleted 2 pods in namespace team." in said["down"]
    # once more it has nothing to ask Kubernetes for
    monkeypatch.setenv("KUBECONFIG", "/none")
    assert served.coadapt("down").returncode == 0
    job = served.state().jobs["train-1"]
    assert (job.phase.name, job.attempt) == ("SUCCEEDED", 1)
    assert running_kubernetes.pods() == []


def test_controller_has_all_the_rights_it_needs_by_the_manifest_and_no_others(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running_kubernetes: KubernetesCluster
) -> None:
    (words,) = shown("coadapt kubernetes manifest")
    # it is no command about a cluster of this machine: there is no --home
    shell = [*COADAPT, *words[: words.index("|")]]
    text = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    with applied(running_kubernetes, text) as objects:
        kubeconfig = running_kubernetes.account_kubeconfig(tmp_path / "account", "coadapt")
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        # the controller's own command, in this place instead of its pod
        (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
        flags = container["command"][2:]
        changed = {
            "--listen": "127.0.0.1:0",
            "--trusted-network": "",
            "--checkpoints": str(tmp_path / "checkpoints"),
        }
        command = []
        for flag, value in zip(flags[::2], flags[1::2], strict=True):
            value = changed.get(flag, value)
            if value and not value.startswith(("volume=", "url=")):
                command += [flag, value]
        served.serve(*command, "--engine-option", "virtual=true", "--policy", "fifo")
        a_job(tmp_path)
        assert served.coadapt("submit", "--yes", str(tmp_path / "train.yaml")).returncode == 0
        assert served.coadapt("wait", "train-1").returncode == 0
        assert served.coadapt("down").returncode == 0
        user = KubernetesApi(find_cluster(str(kubeconfig)))
        base = f"/api/v1/namespaces/{NAMESPACE}"
        assert user.call("GET", f"{base}/pods").ok
        for path in (
            f"{base}/secrets",
            f"{base}/configmaps",
            "/api/v1/namespaces/empty/pods",
            "/api/v1/namespaces",
        ):
            assert user.call("GET", path).status == 403, path


def test_pods_become_a_cluster_and_an_evicted_one_costs_no_work(
    served: Served, running_kubernetes: KubernetesCluster
) -> None:
    dry, wish = (
        [word for word in command if word not in ("--gpus", "8")] + ["--virtual", "2:t4"]
        for command in shown("coadapt up --kubernetes")
    )
    printed = served.coadapt(*dry)
    assert printed.returncode == 0, printed.stderr
    assert len(list(yaml.safe_load_all(printed.stdout))) == 2
    assert not served.home.path.exists(), "a dry run starts nothing"
    assert running_kubernetes.pods() == []
    done = served.coadapt(*wish, "-t", "1h")
    assert done.returncode == 0, done.stderr
    assert "Created 2 pods coadapt-pilot-" in done.stdout
    until(lambda: len(joined(served.home)) == 2, lambda: running_kubernetes.logs())
    assert "leaves in" in served.coadapt("nodes").stdout
    token = (served.home.path / "pilot_token").read_text()
    assert token not in str(running_kubernetes.pods())
    name = served.submit("long")
    until(lambda: bool(served.lives("long")))
    for pod in running_kubernetes.pods():
        running_kubernetes.delete(pod["metadata"]["name"])
    until(lambda: joined(served.home) == set())
    until(lambda: served.state().jobs[name].phase.name in ("PAUSED", "PENDING"))
    again = served.coadapt(*wish)
    assert again.returncode == 0, again.stderr
    until(lambda: len(served.lives("long")) == 2, lambda: served.state().jobs[name])
    served.end("long")
    assert served.coadapt("wait", name).returncode == 0
    assert served.state().jobs[name].attempt == 2


def test_user_with_a_certificate_and_no_rights_is_told_what_is_missing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running_kubernetes: KubernetesCluster
) -> None:
    ada = running_kubernetes.certificate_kubeconfig(tmp_path / "ada")
    monkeypatch.setenv("KUBECONFIG", str(ada))
    options = ("--engine-option", f"namespace={NAMESPACE}", "--engine-option", f"image={IMAGE}")
    for more in ((), ("--engine-option", "nodes=n1:2:t4")):
        done = served.coadapt("serve", "--executor", "kubernetes", *options, *more)
        assert done.returncode == 2
        assert 'User "ada" cannot' in done.stderr
        assert "coadapt kubernetes manifest" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    done = served.coadapt("up", "--kubernetes", "-n", NAMESPACE, "--image", IMAGE, "--gpus", "1")
    assert done.returncode == 2
    assert 'User "ada" cannot create resource "pods"' in done.stderr
    assert not served.home.options_file.exists(), "nothing half started remains"

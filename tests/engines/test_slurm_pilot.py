"""``coadapt up --slurm``: an allocation becomes the cluster, as a user without any rights would have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.machines import joined
from tests.engines.slurm_cluster import SlurmCluster
from tests.integration.serving import Served, serving
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def served(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as made:
        yield made
        # a pilot is the user's to give back
        slurm_cluster("scancel", "-u", "root")
        until(lambda: not slurm_cluster("squeue", "-h").strip(), lambda: slurm_cluster("squeue"))


def test_allocation_becomes_a_cluster_and_goes_when_slurm_takes_it_away(
    served: Served, slurm_cluster: SlurmCluster
) -> None:
    wish = ("up", "--slurm", "-p", "main", "-N", "2", "-t", "1h", "--gres", "gpu:2", "--virtual", "2:t4")
    shown = served.coadapt(*wish, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "#SBATCH --time=0-01:00:00" in shown.stdout
    assert not served.home.path.exists(), "a dry run starts nothing"
    done = served.coadapt(*wish)
    assert done.returncode == 0, done.stderr
    assert "Submitted batch job" in done.stdout
    until(lambda: joined(served.home) == {"n1", "n2"}, lambda: slurm_cluster("squeue"))
    nodes = served.coadapt("nodes").stdout
    assert "leaves in" in nodes
    token = (served.home.path / "pilot_token").read_text()
    assert token not in slurm_cluster("scontrol", "show", "job")
    name = served.submit("long")
    until(lambda: bool(served.lives("long")))
    # preempted by Slurm: saved, and never a failure
    batch = slurm_cluster("squeue", "-h", "-o", "%i").split()[0]
    slurm_cluster("scancel", batch)
    until(lambda: joined(served.home) == set(), lambda: slurm_cluster("squeue"))
    until(
        lambda: served.state().jobs[name].phase.name in ("PAUSED", "PENDING"),
        lambda: served.state().jobs[name],
    )
    again = served.coadapt(*wish)
    assert again.returncode == 0, again.stderr
    until(lambda: len(served.lives("long")) == 2, lambda: served.state().jobs[name])
    served.end("long")
    assert served.coadapt("wait", name).returncode == 0
    assert served.state().jobs[name].attempt == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "none-such"), "invalid partition"),
        (("-t", "5s"), "--time 5s is too short for Slurm"),
        (("--gres", "gpu:99"), "Slurm refuses sbatch"),
    ],
)
def test_impossible_wishes_are_refused_in_one_line(
    served: Served, arguments: tuple[str, ...], message: str
) -> None:
    done = served.coadapt("up", "--slurm", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr

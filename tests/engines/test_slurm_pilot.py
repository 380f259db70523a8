"""``coadapt up --slurm``: an allocation becomes the cluster, as a user without any rights would have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.model import JobStopped
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


def test_pilot_is_renewed_before_its_time_limit_and_its_job_is_handed_over(
    served: Served, slurm_cluster: SlurmCluster
) -> None:
    wish = ("up", "--slurm", "-p", "main", "-N", "1", "-t", "3m", "--gres", "gpu:2", "--virtual", "2:t4")
    done = served.coadapt(*wish)
    assert done.returncode == 0, done.stderr
    assert "renewed while jobs run" in done.stdout
    until(lambda: len(joined(served.home)) == 1, lambda: slurm_cluster("squeue"))
    (first,) = joined(served.home)
    until(lambda: first in served.state().all_nodes)
    assert served.state().all_nodes[first].until is not None
    name = served.submit("long")
    # a job that may not be interrupted and has no known end does not start on a node that goes
    answer = served.ask(
        "POST", "/v1/jobs", {"spec": {"name": "firm", "command": ["sleep", "1"], "preemptible": False}}
    )
    until(lambda: bool(served.lives("long")))
    until(lambda: "is taken away in" in served.coadapt("why", answer["job"]).stdout)
    served.coadapt("cancel", "--yes", answer["job"])
    until(lambda: len(joined(served.home)) == 2, lambda: slurm_cluster("squeue"))
    (second,) = joined(served.home) - {first}
    assert slurm_cluster("squeue", "-h", "-o", "%j").split()[0].startswith("coadapt-pilot-")
    # the old node is drained while it is still there, and the job moves
    until(
        lambda: len(served.lives("long")) == 2,
        lambda: (served.state().jobs[name], served.coadapt("nodes").stdout),
    )
    job = served.state().jobs[name]
    assert [slot.node for slot in job.held.slots] == [second]
    assert first in joined(served.home), "it moved before the end, not because of it"
    stopped = [r.event for r in served.log() if isinstance(r.event, JobStopped)]
    assert [event.cause for event in stopped if event.job == name] == ["drained"]
    assert not (served.path / "long.twice").exists()
    served.end("long")
    assert served.coadapt("wait", name).returncode == 0
    down = served.coadapt("down")
    assert "Gave the nodes of Slurm back." in down.stdout
    assert not slurm_cluster("squeue", "-h").strip()


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

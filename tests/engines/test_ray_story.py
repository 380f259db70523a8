"""The walk-through of Ray in docs/engines.md, executed as it is written on a real Ray."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.ray_cluster import RayCluster
from tests.integration.serving import Served, serving

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]
PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


@pytest.fixture
def served(running_ray: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    # what 'auto' finds; any other Ray of this machine is none of our business
    monkeypatch.setenv("RAY_ADDRESS", running_ray.address)
    with serving(tmp_path) as made:
        yield made


def commands() -> list[list[str]]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Ray\n")[2]
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [shlex.split(line.removeprefix("$ coadapt ")) for line in block[1].splitlines()]


def test_walk_through_works_as_it_is_written(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.yaml").write_text(
        f"name: train\nworkdir: {tmp_path / 'code'}\nrun: sh train.sh\nresources: {{accelerators: 3}}\nepochs: 1\n"
    )
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.sh").write_text('echo "$RANK of $WORLD_SIZE"\n')
    monkeypatch.chdir(tmp_path)
    said = {}
    for command in commands():
        extra = {
            # the GPUs of this Ray are only counted
            "up": ["--engine-option", "virtual=true"],
            "submit": ["--yes"],
        }.get(command[0], [])
        done = served.coadapt(*command, *extra)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        said[" ".join(command)] = done.stdout
        if "--dry-run" in command:
            assert not served.home.path.exists(), "a dry run starts nothing"
    dry = said["up --ray auto --dry-run"]
    assert "# n1: 2 t4\n# n2: 2 t4\n" in dry
    assert "lifetime=detached max_restarts=0 num_gpus=2 num_cpus=0 node=n1" in dry
    assert "2 nodes with 4 GPUs" in said["up --ray auto"]
    assert {"n1", "n2"} <= set(said["nodes"].split())
    assert "2 actors of Ray have ended." in said["down"]
    job = served.state().jobs["train-1"]
    assert (job.phase.name, job.attempt) == ("SUCCEEDED", 1)

"""Slurm's adapter by the published suite, on a real Slurm; and what it makes of Slurm's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.executors.engines._base import Engine, EngineRefusedError, EngineSilentError, Unit
from coadapt.executors.engines.slurm import SlurmEngine, SlurmOptions, pilot_script, time_left_s
from coadapt.executors.slurm import slurm_options
from coadapt.testing import EngineConformance, EngineRoom
from coadapt.testing.engines import CLUSTER
from tests.engines.slurm_cluster import SlurmCluster
from tests.engines.unit_processes import guards_of
from tests.waiting import until


class _Room:
    """Agents that nobody lets in: they try, and are there."""

    def __init__(self, directory: Path, cluster: SlurmCluster) -> None:
        self._directory, self._cluster = directory, cluster
        self.engine: Engine = self.adapter()

    def adapter(self) -> Engine:
        return SlurmEngine(CLUSTER, SlurmOptions(partition="main", virtual=True), self._directory)

    def processes(self, unit: str) -> int:
        return guards_of(unit)

    def close(self) -> None:
        self._cluster("scancel", "-u", "root")
        until(lambda: not self._cluster("squeue", "-h").strip())


@pytest.mark.long
@pytest.mark.xdist_group("slurm")
class TestSlurmEngine(EngineConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, slurm_cluster: SlurmCluster) -> None:
        self.cluster = slurm_cluster

    def room(self, directory: Path) -> EngineRoom:
        return _Room(directory, self.cluster)

    def test_drained_node_is_closed_with_its_reason(self, tmp_path: Path) -> None:
        engine = _Room(tmp_path, self.cluster).engine
        self.cluster("scontrol", "update", "nodename=n2", "state=drain", "reason=a broken fan")
        try:
            (closed,) = [each.closed for each in engine.nodes() if each.node.name == "n2"]
            assert "drain" in closed
            assert "a broken fan" in closed
        finally:
            self.cluster("scontrol", "update", "nodename=n2", "state=resume")

    def test_partition_that_does_not_exist_is_refused_in_one_line(self, tmp_path: Path) -> None:
        engine = SlurmEngine(CLUSTER, SlurmOptions(partition="none-such"), tmp_path)
        with pytest.raises(
            InputError, match="no node in partition 'none-such'; 'sinfo' lists the partitions"
        ):
            engine.check()

    def test_claim_that_slurm_refuses_says_so(self, tmp_path: Path) -> None:
        good = SlurmEngine(CLUSTER, SlurmOptions(partition="main"), tmp_path)
        node = good.nodes()[0].node
        bad = SlurmEngine(CLUSTER, SlurmOptions(partition="main", reservation="none-such"), tmp_path)
        with pytest.raises(EngineRefusedError, match=r"Slurm refuses sbatch: .*reservation"):
            bad.claim(Unit(name="coadapt-x-n1-1", node=node))


def test_slurm_that_cannot_be_reached_is_silent_and_never_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("squeue", "scontrol", "sbatch"):
        (bin_ / name).write_text(
            "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
        )
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    engine = SlurmEngine(CLUSTER, SlurmOptions(), tmp_path)
    for ask in (engine.units, engine.nodes):
        with pytest.raises(EngineSilentError, match="Unable to contact slurm controller"):
            ask()


def test_nodes_are_read_as_several_releases_print_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    lines = [
        "NodeName=a1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=1.0 Gres=gpu:a100:4(S:0-1) State=IDLE Partitions=gpu,all",
        "NodeName=a2 CPUTot=8 Gres=gpu:2 State=MIXED+DRAIN Partitions=gpu Reason=fan noise [root@2026-01-01T00:00:00] Comment=x",
        "NodeName=c1 CPUTot=32 Gres=(null) State=ALLOCATED Partitions=gpu",
        "NodeName=d1 CPUTot=32 Gres=(null) State=DOWN* Partitions=gpu",
        "NodeName=x1 CPUTot=32 State=IDLE Partitions=other",
    ]
    (bin_ / "scontrol").write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    (bin_ / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    found = SlurmEngine(CLUSTER, SlurmOptions(partition="gpu"), tmp_path).nodes()
    assert [(n.node.name, n.node.gpus, n.node.gpu_type, n.closed) for n in found] == [
        ("a1", 4, "a100", ""),
        ("a2", 2, "gpu", "mixed+drain: fan noise"),
        ("c1", 32, "cpu", ""),
        ("d1", 32, "cpu", "down*"),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784.0),
        ("02:03:04", 7384.0),
        ("3:04", 184.0),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_time_left_is_read_as_slurm_writes_it(text: str, seconds: float | None) -> None:
    assert time_left_s(text) == seconds


def test_unknown_option_of_the_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="unknown field `partion`; Slurm takes partition, account"):
        slurm_options({"partion": "gpu"})


def test_pilot_script_has_the_flags_and_no_token() -> None:
    options = SlurmOptions(partition="gpu", time="1-00:00:00", gres="gpu:4", prelude="module load cuda")
    text = pilot_script(
        options, nodes=4, url="https://c:1", token_file="/h/t", offer=["--gpus", "2"], directory="/h/nodes"
    )
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --nodes=4",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --no-requeue",
        "module load cuda",
    ):
        assert line in text.splitlines()
    assert "--token-file /h/t" in text

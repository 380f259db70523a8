"""A real cluster of Ray on loopback for tests: a head that runs nothing and some nodes, all started by one process of ours.

Run as a module it is that process: ``python -m tests.engines.ray_cluster FILE NODES GPUS`` writes address and process ids to FILE, and
ends everything that it started on SIGTERM. ``ray stop`` would end every Ray of the machine. On 127.0.0.2, as Ray replaces 127.0.0.1 by
the address of the network card; telemetry is off, and would post to a closed port of loopback. GPUs are counted, not there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from coadapt.executors.node.processes import dies_with, started_ticks
from tests.waiting import until

HOST = "127.0.0.2"
#: Ray's own time-outs, low: a node whose raylet is gone is dead after some 5 s, and without a head everything ends after 5 s.
LOW = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9/"}
#: From this load on nodes of Ray do not start: the raylet gives its helpers a fixed time.
MOST_LOAD = 30.0


def why_not() -> str:
    """Why there can be no Ray here; empty: there can."""
    if find_spec("ray") is None:
        return "Ray is not installed; pip install 'coadapt[ray]'"
    load = os.getloadavg()[0]
    return f"nodes of Ray do not start on a machine this busy (load {load:.0f})" if load > MOST_LOAD else ""


class RayCluster:
    """``nodes`` nodes, n1 and on, of ``gpus`` GPUs of type t4."""

    def __init__(
        self, directory: Path, nodes: int = 2, gpus: int = 2, environment: Mapping[str, str] | None = None
    ) -> None:
        directory.mkdir(mode=0o755)
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self._file, self._log = directory / "cluster.json", directory / "log"
        self.environment = {**os.environ, **QUIET, **LOW, **(environment or {})}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.ray_cluster", str(self._file), str(nodes), str(gpus)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),
            )
        until(lambda: self._file.exists() or self._process.poll() is not None, lambda: self._log.read_text())
        assert self._file.exists(), self._log.read_text()
        found = json.loads(self._file.read_text())
        self.address: str = found["address"]
        #: Process ids by the node's name ("head" among them) and the program's.
        self.pids: dict[str, dict[str, list[int]]] = found["pids"]
        #: Processes that daemons started, with their start: some outlive a daemon that was killed.
        self._helpers: dict[int, int] = {}

    def kill(self, node: str, program: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signals a daemon, as ``("n1", "raylet")`` or ``("head", "gcs_server")``."""
        self._note_helpers()
        (pid,) = self.pids[node][program]
        os.kill(pid, number)

    def _note_helpers(self) -> None:
        daemons = {pid for node in self.pids.values() for pids in node.values() for pid in pids}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            ticks = started_ticks(int(entry.name))
            if (parent in daemons or int(entry.name) in daemons) and ticks is not None:
                self._helpers[int(entry.name)] = ticks

    def add_node(self) -> None:
        """Starts another node n1, after the first was killed."""
        before = self._file.stat().st_mtime_ns
        self._process.send_signal(signal.SIGUSR1)
        until(lambda: self._file.stat().st_mtime_ns != before, lambda: self._log.read_text())
        self.pids = json.loads(self._file.read_text())["pids"]

    def stop(self) -> None:
        """Ends everything; what ignores SIGTERM is killed by its id."""
        self._note_helpers()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid, ticks in self._helpers.items():
            if started_ticks(pid) == ticks:
                os.kill(pid, signal.SIGKILL)


@contextmanager
def ray_cluster(directory: Path, nodes: int = 2, gpus: int = 2, **environment: str) -> Iterator[RayCluster]:
    """A running cluster; nothing of it is left afterwards."""
    cluster = RayCluster(directory, nodes, gpus, environment)
    try:
        yield cluster
    finally:
        cluster.stop()


def main(file: Path, nodes: int, gpus: int) -> None:
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": 80 << 20, "node_ip_address": HOST}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, **common},
    )
    made = {"head": cluster.head_node}

    def add(name: str) -> None:
        made[name] = cluster.add_node(
            num_cpus=4,
            num_gpus=gpus,
            labels={"coadapt/node": name},
            resources={"accelerator_type:T4": 1},
            **common,
        )

    def write() -> None:
        pids = {
            name: {program: [p.process.pid for p in found] for program, found in node.all_processes.items()}
            for name, node in made.items()
        }
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"address": cluster.address, "pids": pids}))
        part.replace(file)

    for number in range(nodes):
        add(f"n{number + 1}")
    heard: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda which, frame: heard.append(which))
    write()
    while signal.SIGTERM not in heard:
        if heard:
            heard.clear()
            add("n1")
            write()
        for node in made.values():
            for found in node.all_processes.values():
                for each in found:
                    each.process.poll()  # actors look whether their raylet is there: a dead one that nobody reaps still is
        time.sleep(0.1)
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

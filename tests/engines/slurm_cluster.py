"""A real Slurm cluster on loopback for tests: munged, slurmctld and some slurmd, in one directory, on ports of their own.

Needs root and the packages slurm-wlm and munge; no systemd, no cgroups. Every daemon is a child of the test, and ended by its pid.
GPUs are counted, not there. Time-outs are low: a node whose slurmd is gone is DOWN after 5 s, a job has 3 s to end.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coadapt.executors.node.processes import dies_with
from tests.waiting import until

DAEMONS = ("munged", "slurmctld", "slurmd")


def why_not() -> str:
    """Why there can be no Slurm here; empty: there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in DAEMONS if _path(name) is None]
    return f"Slurm is not installed ({', '.join(missing)}); run tests/engines/install" if missing else ""


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class SlurmCluster:
    """``nodes`` nodes of ``gpus`` GPUs of one type."""

    def __init__(self, directory: Path, nodes: int = 2, gpus: int = 2, gpu_type: str = "t4") -> None:
        self.directory, self.names = directory, [f"n{number + 1}" for number in range(nodes)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir(mode=0o755)
        for name in ("state", "log", "dev", "munge", *(f"spool/{node}" for node in self.names)):
            (directory / name).mkdir(mode=0o755, parents=True)
        self._write(nodes, gpus, gpu_type)
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def _write(self, nodes: int, gpus: int, gpu_type: str) -> None:
        place = self.directory
        (place / "munge" / "key").write_bytes(os.urandom(1024))
        (place / "munge" / "key").chmod(0o400)
        ports = _free_ports(nodes + 1)
        host = socket.gethostname().partition(".")[0]
        lines = [
            "ClusterName=coadapt",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            *("SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge"),
            f"AuthInfo=socket={place}/munge/socket",
            f"StateSaveLocation={place}/state",
            f"SlurmdSpoolDir={place}/spool/%n",
            f"SlurmctldPidFile={place}/slurmctld.pid",
            f"SlurmdPidFile={place}/slurmd-%n.pid",
            *(
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "MpiDefault=none",
                "SwitchType=switch/none",
            ),
            *("JobAcctGatherType=jobacct_gather/none", "AccountingStorageType=accounting_storage/none"),
            *("SchedulerType=sched/backfill", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core"),
            *("SlurmdParameters=config_overrides", "ReturnToService=2", "GresTypes=gpu"),
            *("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", "JobRequeue=1"),
            *(
                "KillWait=3",
                "SlurmdTimeout=5",
                "SlurmctldTimeout=5",
                "InactiveLimit=0",
                "MinJobAge=30",
                "MessageTimeout=5",
            ),
            "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0",
            *(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=4000 Gres=gpu:{gpu_type}:{gpus} State=UNKNOWN"
                for name, port in zip(self.names, ports[1:], strict=True)
            ),
            f"PartitionName=main Nodes={','.join(self.names)} Default=YES MaxTime=INFINITE State=UP PriorityTier=1",
            f"PartitionName=urgent Nodes={','.join(self.names)} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF",
        ]
        (place / "slurm.conf").write_text("\n".join(lines) + "\n")
        for number in range(gpus):
            os.mknod(place / "dev" / f"gpu{number}", 0o600 | 0o020000, os.makedev(1, 3))
        devices = f"{place}/dev/gpu[0-{gpus - 1}]" if gpus > 1 else f"{place}/dev/gpu0"
        gres = [f"NodeName={name} Name=gpu Type={gpu_type} File={devices}" for name in self.names]
        (place / "gres.conf").write_text("\n".join(gres) + "\n")

    # -- daemons --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts everything; returns when all nodes are idle."""
        munge = self.directory / "munge"
        self._run(
            "munged",
            *("--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key"),
            *(f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
        )
        until((munge / "socket").exists, "munged does not listen")
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        until(lambda: self._idle() == len(self.names), lambda: self.logs())

    def start_controller(self) -> None:
        self._run("slurmctld", "-D", "-f", str(self.directory / "slurm.conf"))

    def start_node(self, name: str) -> None:
        self._run("slurmd", "-D", "-N", name, "-f", str(self.directory / "slurm.conf"), key=f"slurmd {name}")

    def kill(self, daemon: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kills slurmctld, or ``slurmd NODE``."""
        self._daemons[daemon].send_signal(number)
        if number is signal.SIGKILL:
            self._daemons.pop(daemon).wait()

    def stop(self) -> None:
        """Ends all daemons; jobs were ended before."""
        for name, process in reversed(list(self._daemons.items())):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            del self._daemons[name]

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-2000:]}" for path in (self.directory / "log").iterdir()
        )

    def _run(self, program: str, *arguments: str, key: str = "") -> None:
        path = _path(program)
        assert path is not None
        with (self.directory / "log" / f"{(key or program).replace(' ', '-')}.log").open("ab") as log:
            self._daemons[key or program] = subprocess.Popen(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),
            )

    # -- commands -------------------------------------------------------------------------------------

    def __call__(self, *command: str) -> str:
        """Runs a command of Slurm's; returns what it prints, also where it fails."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=60, check=False
        )
        return done.stdout or done.stderr

    def _idle(self) -> int:
        found = self("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").strip()
        return int(found) if found.isdigit() else 0


@contextmanager
def slurm(directory: Path, nodes: int = 2, gpus: int = 2) -> Iterator[SlurmCluster]:
    """A running cluster; nothing of it is left afterwards."""
    cluster = SlurmCluster(directory, nodes, gpus)
    try:
        cluster.start()
        yield cluster
    finally:
        if "slurmctld" in cluster._daemons:
            cluster("scancel", "-u", "root")
            until(lambda: not cluster("squeue", "-h").strip(), lambda: cluster("squeue"))
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    found = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return found

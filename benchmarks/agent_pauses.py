"""How long training pauses when it is resized: last step at the old size to first step at the new, on the wall clock."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.cells import ROOT, cell, source_hash
from benchmarks.measure import Row
from benchmarks.smoke import either, few

_SOURCES = ("torch/**/*.py", "torch/sync/ring.py")
_SETTING = ("agent_worker.py", "agent_pauses.py")
_STEPS = 15


def pauses(quick: bool) -> list[Row]:
    """2 <-> 4 processes in place and by restart, beside torchrun's elastic restart."""
    repeats, sources = either(1, 3 if quick else 10), source_hash(_SOURCES, setting=_SETTING)
    # starting processes takes minutes: the smoke form resizes once, in place
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in few(("in place", "restart"))}
    elastic = []
    for number in range(repeats):
        for kind in found:
            arguments = {"kind": kind, "number": number}
            found[kind].append(cell("agent-pause", arguments, sources, lambda kind=kind: _pair(kind)))  # type: ignore[misc]
        # in turns with ours, as often: a slow hour of the machine hits all three
        if either(False, True):
            elastic.append(cell("agent-torchrun", {"number": number}, sources, _torchrun))
    rows = []
    for kind, which, must in few(
        (
            ("in place", "shrink", 1.0),
            ("in place", "grow", 1.5),
            ("restart", "grow", 10.0),
            ("restart", "shrink", 10.0),
        ),
        2,
    ):
        times = [one[which] for one in found[kind]]
        ready = statistics.median([one["ready_s"] for one in found[kind]])
        load = max(one["load"] for one in found[kind])
        apart = (
            f"newcomers ready after {ready:.1f} s, beside the running ones; "
            if which == "grow" and kind == "in place"
            else ""
        )
        note = f"{apart}median of {len(times)}, worst {max(times):.2f} s; load up to {load:.1f}"
        rows.append(
            Row(
                f"pause, {kind}, {which} between 2 and 4",
                statistics.median(times),
                must,
                unit=" s",
                note=note,
            )
        )
    seen = [one["pause"] for one in elastic]
    if not seen:
        return rows
    print(
        f"   torchrun's elastic restart, 2 -> 4 in turns with ours: {statistics.median(seen):.1f} s (median of {len(seen)}, "
        f"{min(seen):.1f} to {max(seen):.1f}); it neither saves nor loads a state, ours does"
    )
    return rows


def _pair(kind: str) -> dict[str, Any]:
    """One grow and one shrink."""
    from coadapt.torch.launch import Launcher

    with tempfile.TemporaryDirectory() as name:
        journal = Path(name) / "journal"
        journal.touch()
        command = [
            sys.executable,
            "-m",
            "benchmarks.agent_worker",
            "pause",
            json.dumps({"journal": str(journal)}),
        ]
        launcher = Launcher(
            command,
            envs={"COADAPT_CHECKPOINTS": f"{name}/kept", "OMP_NUM_THREADS": "1"},
            logs=Path(name) / "logs",
        )
        os.chdir(ROOT)
        ready_s = 0.0
        small, large = either((1, 2), (2, 4))
        try:
            launcher.start(small)
            _more(journal, either(2, _STEPS))
            if kind == "in place":
                ready_s = launcher.resize(large)
            else:
                launcher.stop()
                launcher.start(large)
            _more(journal, either(2, _STEPS))
            if kind == "in place":
                launcher.resize(small)
            else:
                launcher.stop()
                launcher.start(small)
            _more(journal, either(2, _STEPS))
        finally:
            launcher.kill()
        grow, shrink = _gaps(journal)
    return {"grow": grow, "shrink": shrink, "ready_s": ready_s, "load": os.getloadavg()[0]}


def _more(journal: Path, steps: int) -> None:
    goal, until = journal.read_text().count("\n") + steps, time.monotonic() + 600
    while journal.read_text().count("\n") < goal:
        if time.monotonic() > until:
            raise SystemExit("no progress for ten minutes")
        time.sleep(0.05)


def _gaps(journal: Path) -> list[float]:
    """Time between the steps at which the number of replicas changed."""
    rows = [line.split() for line in journal.read_text().splitlines()]
    return [float(b[0]) - float(a[0]) for a, b in pairwise(rows) if a[1] != b[1]]


def _torchrun() -> dict[str, Any]:
    """torchrun with --nnodes 1:2 and two processes per agent; a second agent joins."""
    with tempfile.TemporaryDirectory() as name:
        journal = Path(name) / "journal"
        journal.touch()
        envs = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        port = 20000 + os.getpid() % 20000
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "2"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "pause"),
            *(
                "--max-restarts",
                "5",
                "-m",
                "benchmarks.agent_worker",
                "plain_pause",
                json.dumps({"journal": str(journal)}),
            ),
        ]
        agents = [subprocess.Popen(command, env=envs, cwd=ROOT, stderr=subprocess.DEVNULL)]
        try:
            _more(journal, either(2, _STEPS))
            agents.append(subprocess.Popen(command, env=envs, cwd=ROOT, stderr=subprocess.DEVNULL))
            until = time.monotonic() + 600
            while not any(line.endswith(" 4") for line in journal.read_text().splitlines()):
                if time.monotonic() > until:
                    raise SystemExit("torchrun did not grow in ten minutes")
                time.sleep(0.1)
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait()
        return {"pause": _gaps(journal)[0], "load": os.getloadavg()[0]}

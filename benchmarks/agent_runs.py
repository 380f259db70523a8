"""Replicas of a benchmark of the agent as real processes, and their answers kept until the agent changes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

from benchmarks.cells import ROOT, cell, source_hash

_SOURCES = (
    "torch/**/*.py",
    "torch/rates/*.py",
    "torch/batches/*.py",
    "torch/sync/ring.py",
    "torch/sync/_base.py",
)
_SETTING = ("agent_worker.py", "agent_tasks.py")


def worker(
    what: str, options: dict[str, Any], replicas: int = 1, module: str = "agent_worker"
) -> dict[str, Any]:
    """Runs replicas of a benchmark; the first one's answer."""
    envs = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(random.randint(20000, 50000)),
        "WORLD_SIZE": str(replicas),
        "LOCAL_WORLD_SIZE": str(replicas),
    }
    command = [sys.executable, "-m", f"benchmarks.{module}", what, json.dumps(options)]
    started = [
        subprocess.Popen(
            command, env={**envs, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.PIPE, cwd=ROOT
        )
        for r in range(replicas)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{what} {options}: exit codes {[process.returncode for process in started]}")
    lines = [line for line in outputs[0].decode().splitlines() if line.startswith("ANSWER ")]
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER "))
    return answer


def saved(
    what: str,
    options: dict[str, Any],
    replicas: int = 1,
    more: tuple[str, ...] = (),
    module: str = "agent_worker",
) -> dict[str, Any]:
    """The same, kept; ``more`` files of the setting."""
    arguments = {"options": options, "replicas": replicas}
    sources = source_hash(_SOURCES, setting=(*_SETTING, *more))
    return cell(f"agent-{what}", arguments, sources, lambda: worker(what, options, replicas, module))

"""Synchronisation architectures, measured with real processes on this machine.

Run: python -m benchmarks.agent sync

- a parameter-server step over p servers and w workers, synchronous and asynchronous, and Optimus' f(p, w) fitted to it;
- central against ring over 2 to 4 processes and three sizes, beside the bytes each sends: 2 X (N - 1) and 2 X (N - 1) / N.

Wall time, medians, architectures in turns inside one set of processes. Two cores and a loopback: the more processes, the more
they wait for a core, so these are figures about this machine and show that the models can be fitted, no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.smoke import either, few
from coadapt.prediction import parameter_server
from coadapt.prediction.parameter_server import ServerRow, ServerTable
from coadapt.wire.agent import Variable

SIZES = (10_000, 250_000, 2_500_000)
BATCH, STEPS = 96, 40


def replicas_say(replicas: int, asked: list[list[Any]]) -> list[float]:
    """Means over replicas of what was asked, from a fresh set of processes."""
    from coadapt.torch.elastic.rendezvous_process import hosted

    # the store is ours and stays open: a port that is probed and closed may be another program's a moment later
    store = hosted()
    shared = {**os.environ, "WORLD_SIZE": str(replicas), Variable.STORE: f"127.0.0.1:{store.port}"}
    shared |= {"ASKED": json.dumps(asked), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.agent_sync_worker"],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            env={**shared, "RANK": str(rank)},
        )
        for rank in range(replicas)
    ]
    said = [process.communicate(timeout=600)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a replica failed; see above")
    found: list[float] = json.loads(said[0])
    return found


def _cell(replicas: int, asked: list[list[Any]]) -> list[float]:
    sources = source_hash(
        ["torch/sync/*.py", "torch/elastic/process_group.py"], setting=["agent_sync_worker.py"]
    )
    arguments = {"replicas": replicas, "asked": asked}
    found = cell("agent-sync", arguments, sources, lambda: {"said": replicas_say(replicas, asked)})
    said: list[float] = found["said"]
    return said


def server_speeds(kind: str) -> dict[tuple[int, int], float]:
    """Seconds of a worker's step by (servers, workers)."""
    found = {}
    for workers in (1, 2, 3):
        asked = [["step", f"{kind}:{servers}", BATCH, STEPS] for servers in (1, 2)]
        for servers, took in zip((1, 2), _cell(workers, asked), strict=True):
            found[servers, workers] = took
    return found


def fitted(times: dict[tuple[int, int], float], *, synchronous: bool) -> float:
    """Mean relative error of f(p, w) fitted to all of them."""
    rows = tuple(ServerRow(p, w, BATCH, STEPS, took) for (p, w), took in sorted(times.items()))
    params = parameter_server.fit(ServerTable(synchronous=synchronous, rows=rows))
    assert params is not None
    errors = []
    for row in rows:
        # in steps per second of all workers together
        true = 1 / row.step_s if synchronous else row.workers / row.step_s
        errors.append(abs(float(parameter_server.speed(params, row.servers, row.workers, BATCH)) / true - 1))
    return float(np.mean(errors))


def architectures(quick: bool) -> list[Row]:
    """Prints both tables; what must hold is that synchronous and asynchronous training come to the same."""
    print(
        f"\nParameter servers: ms of a worker's step (network of 0.4 M numbers, {BATCH} examples over all workers)"
    )
    for kind, synchronous in either((), (("servers", True), ("async-servers", False))):
        times = server_speeds(kind)
        said = ", ".join(f"p={p} w={w}: {1000 * took:.1f}" for (p, w), took in sorted(times.items()))
        error = fitted(times, synchronous=synchronous)
        print(
            f"  {'synchronous ' if synchronous else 'asynchronous'} {said}; f(p, w) fits within {error:.1%}"
        )
    print(
        "\nCentral against ring: ms of an exchange, and their ratio (bytes through the busiest link: ratio N)"
    )
    sizes = few(SIZES)
    for replicas in few((2, 3, 4)):
        asked = [
            ["exchange", name, size, either(1, 15)] for size in sizes for name in ("central", "ring-late")
        ]
        took = _cell(replicas, asked)
        for at, size in enumerate(sizes):
            central, ring, whole = took[2 * at], took[2 * at + 1], 4 * size / 1e6
            print(
                f"  N={replicas} {whole:5.2f} MB: central {1000 * central:7.2f} ({2 * whole * (replicas - 1):.2f} MB sent),"
                f" ring {1000 * ring:7.2f} ({2 * whole * (replicas - 1) / replicas:.2f} MB), ratio {central / ring:.2f}"
            )
    kinds = ("servers:1", "servers:2", "async-servers:1", "async-servers:2")
    return [_converged(kind) for kind in few(kinds)]


def _converged(kind: str) -> Row:
    """Accuracy on digits after the same examples, beside all-reduce."""
    ours, ring = (_cell(either(1, 2), [["accuracy", name, either(1, 8)]])[0] for name in (kind, "ring-late"))
    what = f"accuracy on digits, 2 workers, {kind}"
    return Row(what, ours, ring - 0.03, at_least=True, note=f"all-reduce {ring:.3f}; at most 3 points less")


def main() -> int:
    """1 where a must falls short."""
    return 0 if show("sync", architectures(False)) else 1


if __name__ == "__main__":
    sys.exit(main())

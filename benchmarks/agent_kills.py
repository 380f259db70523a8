"""Resizes 1 -> 2 -> 4 -> 1 and kill -9 at 20 random moments: the same examples, the same parameters as undisturbed."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tests.integration.torch_forks import Replicas, run

from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row
from benchmarks.smoke import either
from coadapt.torch.tools.rehearse import committed, journal

_SIZES = (1, 2, 4, 1)


def kills(quick: bool) -> list[Row]:
    """Two of three disturbances are SIGKILL, the third a SIGTERM; after each it goes on at the next of the sizes."""
    count = either(2, 6 if quick else 30)
    sources = source_hash(("torch/**/*.py", "torch/sync/ring.py"), setting=("agent_kills.py",))
    found = cell("agent-kills", {"count": count}, sources, lambda: _disturbed(count))
    note = f"{found['kills']} kills, {found['stops']} resizes, {found['repeated']} steps made again"
    return [
        Row("steps whose examples differ from an undisturbed run", found["differing"], 0, note=note),
        Row("largest difference of a final parameter", found["apart"], 1e-5),
        Row("kills and resizes that found the training at its end", found["missed"], 0),
    ]


def _disturbed(count: int) -> dict[str, Any]:
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        quiet, loud = Path(name) / "quiet", Path(name) / "loud"
        loud.mkdir()
        epochs = str(4 * count)
        run(
            "steady.py",
            1,
            quiet,
            RESULT=str(quiet / "result"),
            COADAPT_AUDIT=str(quiet / "audit"),
            EPOCHS=epochs,
        )
        audit = loud / "audit"
        audit.touch()
        envs = {
            "RESULT": str(loud / "result"),
            "COADAPT_AUDIT": str(audit),
            "COADAPT_CHECKPOINTS": str(loud / "kept"),
            "EPOCHS": epochs,
            "EVERY_S": "0.05",
            "STEP_S": "0.01",
        }
        missed = 0
        kinds = [signal.SIGTERM if number % 3 == 2 else signal.SIGKILL for number in range(count)]
        for number in range(count + 1):
            size = _SIZES[number % len(_SIZES)]
            replicas = Replicas("steady.py", size, loud / str(number), COADAPT_ATTEMPT=str(number), **envs)
            if number == count:
                replicas.wait()
                break
            _after(audit, rng.randint(1, 20), replicas)
            time.sleep(rng.random() * 0.05)
            missed += not all(process.is_alive() for process in replicas.processes)
            replicas.signal(kinds[number])
            replicas.wait()
        one, other = committed(quiet / "audit"), committed(audit)
        places = [[(s.step, s.passes, s.position) for s in each] for each in (one, other)]
        differing = sum(a != b for a, b in zip(*places, strict=False)) + abs(len(one) - len(other))
        pairs = zip(torch.load(quiet / "result"), torch.load(loud / "result"), strict=True)
        return {
            "differing": differing,
            "apart": max(float((a - b).abs().max()) for a, b in pairs),
            "repeated": len(journal(audit)) - len(other),
            "missed": missed,
            "kills": kinds.count(signal.SIGKILL),
            "stops": kinds.count(signal.SIGTERM),
        }


def _after(audit: Path, steps: int, replicas: Replicas) -> None:
    goal = audit.read_bytes().count(b"\n") + steps
    while audit.read_bytes().count(b"\n") < goal and replicas.processes[0].is_alive():
        time.sleep(0.002)

"""``python -m benchmarks.chaos``: everything is killed, again and again; nothing is lost, runs twice or is left behind.

200 rounds with light replicas that record their own life, 10 with PyTorch. In each round jobs are submitted, cancelled, paused,
resumed, retried through the API while controller, API, supervisor, keeper and replicas die by SIGKILL at random instants, the
controller is stopped, hangs on a job or gets a rival, replicas leave daemons behind, the disk is full, store and journal are held up, and the
clock jumps; a backup is taken, everything killed, and another home goes on from it. Every third cell has its store on PostgreSQL, which is frozen and killed; every other one has no control groups.
Cells of ten rounds are saved, so that it may be stopped and taken up again; ``--minutes`` bounds it, ``--quick`` runs two cells.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.smoke import either

#: Cells take turns with these: policies that keep, preempt, and resize.
POLICIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("fifo", ()),
    ("tiresias", ("thresholds=2",)),
    ("fair-share", ("preempt=true", "min_run_s=1", "by=user")),
    ("coadapt", ("change_s=1", "every_s=2", "horizon_s=10")),
)
#: Of jobs that take seconds to import PyTorch: they keep what they are given for long enough to train a step.
PATIENT = ("coadapt", ("change_s=10", "every_s=5", "min_run_s=20"))
ROUNDS = 10
_SETTING = (
    "chaos.py",
    *(
        f"chaos_{part}.py"
        for part in ("check", "postgres", "replica", "restore", "rounds", "torch", "user", "world")
    ),
)
_SOURCES = (
    "executors/**/*.py",
    "runtime/*.py",
    "scheduler/**/*.py",
    "store/*.py",
    "server/**/*.py",
    "torch/**/*.py",
    "client/*.py",
    "live/*.py",
)


def run_cell(number: int, *, torch: bool) -> dict[str, Any]:
    """Ten rounds on a new home."""
    from benchmarks.chaos_postgres import a_postgres
    from benchmarks.chaos_rounds import Rounds
    from benchmarks.chaos_user import light_job, torch_job

    policy, options = PATIENT if torch else POLICIES[number % len(POLICIES)]
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="coadapt-chaos-") as name,
        a_postgres() if number % 3 == 2 and not torch else nullcontext() as postgres,
    ):
        make = torch_job if torch else light_job
        rounds = Rounds(Path(name), number, policy, options, make, groups=number % 2 == 0, postgres=postgres)
        found = rounds.run(
            either(1, ROUNDS),
            round_s=either(0.5, 6.0 if torch else 2.5),
            longest_s=either(0.5, 5.0),
        )
    store = "sqlite" if postgres is None else "postgres"
    return {**found, "policy": policy, "store": store, "seconds": time.monotonic() - began}


def rows_of(cells: list[dict[str, Any]], rounds: int, title: str) -> list[Row]:
    """A row for each thing that must not be."""
    counted: Counter[str] = Counter()
    disasters: Counter[str] = Counter()
    for each in cells:
        disasters.update(each["disasters"])
        counted.update({name: len(found) for name, found in each["wrong"].items()})
        for name, found in each["wrong"].items():
            for text in found:
                print(f"  {each['policy']}, {name}: {text}")
    totals = {
        name: sum(each[name] for each in cells)
        for name in ("jobs", "attempts", "replicas", "daemons", "records", "controllers")
    }
    print(f"  {title}: {json.dumps(totals)}; {json.dumps(dict(disasters))}")
    rows = [Row(f"{title}: rounds", ROUNDS * len(cells), rounds, at_least=True)]
    names = list(cells[0]["wrong"]) if cells else []
    return rows + [Row(f"{title}: {name}", counted[name], 0) for name in names]


def main() -> int:
    """1 where something went wrong, or not all rounds were made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--part", default="0/1", metavar="I/N", help="only every N-th cell, to run several at once"
    )
    given = parser.parse_args()
    light, torch = either((1, 0), (2, 0) if given.quick else (20, 1))
    sources = source_hash(_SOURCES, setting=_SETTING)
    until = time.monotonic() + 60.0 * given.minutes
    found: dict[str, list[dict[str, Any]]] = {"light": [], "torch": []}
    part, parts = map(int, given.part.split("/"))
    for number in range(light + torch):
        kind = "light" if number < light else "torch"
        if number % parts == part and time.monotonic() < until:
            arguments = {"number": number, "kind": kind}
            result = cell("chaos", arguments, sources, partial(run_cell, number, torch=kind == "torch"))
            found[kind].append(result)
            wrong = sum(map(len, result["wrong"].values()))
            print(
                f"{kind} cell {number}, {result['policy']}: {result['seconds']:.0f} s, {result['jobs']} jobs, {wrong} wrong",
                flush=True,
            )
    rows = rows_of(found["light"], ROUNDS * light, "light replicas")
    if torch:
        rows += rows_of(found["torch"], ROUNDS * torch, "torch")
    return 0 if show("Chaos", rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Remaining time and remaining work: how far off, and do the stated 80% intervals hold?

    python -m benchmarks.prediction_remaining [--quick] [--held-out]

- generated streams of batch times (``remaining_streams``);
- jobs of the real simulator under Tiresias and Pollux, as a controller would tell their ends (``remaining_told``), on the two
  workloads of design; ``--held-out``: also on two others, a look, to be noted in docs/looks/remaining.md. The promise is that of "kept"
  where the policy resizes nothing and of "shared" where it does; the other ways stand beside it, and the oracle that
  knows the GPUs to come, which tells how much of an error is the scheduler's future;
- real runs here (``remaining_real``);
- remaining work towards a target metric (``remaining_curves``).

The error is |predicted - true| / true of the time (work) left, when 10, 25, 50, 75 and 90% of the work is done. Everything
that takes long is saved (``benchmarks.cells``): a run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import remaining_curves, remaining_jobs, remaining_real, remaining_streams, remaining_told
from benchmarks.errors import errors
from benchmarks.measure import Row, show
from benchmarks.remaining_jobs import SHARES, SIMULATED, Controller, Score, recorded
from benchmarks.remaining_told import Told, scored, told
from benchmarks.smoke import either, few
from coadapt.policies._base import Policy
from coadapt.policies.pollux.policy import PolluxPolicy
from coadapt.policies.tiresias import TiresiasPolicy

#: What the rows depend on besides the predictors: read by ``benchmarks.prediction``.
SOURCES = SIMULATED
SETTING = tuple(
    f"{module.__name__.removeprefix('benchmarks.')}.py"
    for module in (remaining_curves, remaining_jobs, remaining_real, remaining_streams, remaining_told)
)
DESIGN, HELD_OUT = ("tuned-1.0x-1", "tuned-1.0x-2"), ("tuned-1.0x-3", "generated-101")
POLICIES: tuple[type[TiresiasPolicy] | type[PolluxPolicy], ...] = (TiresiasPolicy, PolluxPolicy)


def eta_rows(
    what: str, scores: Sequence[Score], must: float = math.inf, aim: float | None = None
) -> list[Row]:
    """Median error by share; what is promised is the one at half. The promise of intervals, over all shares, goes with it."""
    rows = []
    for share in SHARES:
        picked = [score for score in scores if score[0] == share]
        if not picked:
            continue
        _, found, true, held = (np.array(each) for each in zip(*picked, strict=True))
        off = found / true - 1
        note = (
            f"median; {errors(found, true)}, bias {100 * np.median(off):+.1f}%, "
            f"80% interval holds {100 * held.mean():.0f}% of {len(picked)}"
        )
        promised = share == 0.5
        rows.append(
            Row(
                what=f"ETA, {what}, {100 * share:.0f}% done",
                figure=100 * float(np.median(np.abs(off))),
                must=must if promised else math.inf,
                aim=aim if promised else None,
                unit="%",
                note=note,
            )
        )
    return [*rows, _coverage(what, scores, promised=math.isfinite(must))] if scores else []


def _coverage(what: str, scores: Sequence[Score], *, promised: bool) -> Row:
    """Within 5 points of 80; of fewer than 250 values within two standard errors."""
    held = 100 * float(np.mean([score[3] for score in scores]))
    slack = max(5.0, 200 * math.sqrt(0.16 / len(scores)) if len(scores) < 250 else 0.0)
    return Row(
        what=f"ETA, {what}: |coverage - 80|, all shares",
        figure=abs(held - 80),
        must=slack if promised else math.inf,
        unit=" points",
        note=f"{held:.1f}% of {len(scores)}",
    )


def simulator_rows(policy: Policy, workloads: Sequence[str], where: str) -> list[Row]:
    """All ways; the promises are those of what a controller would show."""
    name, resizes = type(policy).__name__.removesuffix("Policy"), policy.chooses_size
    runs = [told(Controller(policy), recorded(policy, load)) for load in workloads]
    alone = [told(Controller(policy, remembers=False), recorded(policy, load)) for load in workloads]
    promised = "shared" if resizes else "kept"
    found = eta_rows(f"{name}, {where}", _scores(runs, promised), 5.0, 3.0)
    found += eta_rows(f"{name}, {where}, no past jobs", _scores(alone, promised))
    found += eta_rows(f"{name}, {where}, pace alone", _scores(runs, "pace"))
    if resizes:
        found += eta_rows(f"{name}, {where}, GPUs taken to stay", _scores(runs, "kept"))
        for what, changed in (("that keep their GPUs", False), ("that do not", True)):
            scores = [(each, score) for run in runs for each, score in scored(run, promised)]
            picked = [score for each, score in scores if each.resized is changed and score[0] == 0.5]
            found += eta_rows(f"{name}, {where}, jobs {what}", picked)
        found += eta_rows(f"{name}, {where}, oracle: GPUs to come known", _scores(runs, "known"))
    return found


def _scores(runs: Sequence[list[Told]], way: str) -> list[Score]:
    """Each workload is a controller of its own: none learns from another's jobs."""
    return [score for run in runs for _, score in scored(run, way)]


def real_rows(quick: bool) -> list[Row]:
    """Twenty runs by three clocks: the fair one is promised, the wall clock where no other process kept the cores busy."""
    count, seconds = either((1, 1.0), (4, 5.0) if quick else (20, 15.0))
    scores, (least, most) = remaining_real.scores(count, seconds)
    promised = {"fair": True, "wall": most < (os.cpu_count() or 1), "CPU": False}
    found: list[Row] = []
    for clock in ("fair", "wall", "CPU"):
        must, aim = (5.0, 3.0) if promised[clock] else (math.inf, None)
        found += eta_rows(f"real runs, {clock} clock, load {least:.1f}-{most:.1f}", scores[clock], must, aim)
    return found


def rows(quick: bool = False) -> list[Row]:
    """All figures of this part but the held-out ones; ``quick`` has fewer runs and leaves the simulator out."""
    found = eta_rows("generated streams", remaining_streams.scores(either(1, 15 if quick else 60)), 5.0, 3.0)
    if not quick:
        for policy in few(POLICIES):
            found += simulator_rows(policy(), few(DESIGN), "design")
    found += real_rows(quick)
    for task in few(("bert", "cifar10", "imagenet")):
        for with_pool in (False, True):
            found += remaining_curves.rows(task, with_pool)
    return found


def held_out_rows() -> list[Row]:
    """Workloads that design did not use: a look."""
    return [row for policy in POLICIES for row in simulator_rows(policy(), HELD_OUT, "held out")]


def main() -> None:
    """Prints the table; exits 1 where a must does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer runs, no simulator")
    parser.add_argument("--held-out", action="store_true", help="workloads design did not use: a look")
    parser.add_argument(
        "--train", nargs=3, metavar=("LOG", "SEED", "SECONDS"), help="one real run, nothing else"
    )
    given = parser.parse_args()
    if given.train:
        remaining_real.train(Path(given.train[0]), int(given.train[1]), float(given.train[2]))
        return
    holds = show("Remaining time and work", rows(given.quick))
    if given.held_out:
        holds = show("Workloads not used for design", held_out_rows()) and holds
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()

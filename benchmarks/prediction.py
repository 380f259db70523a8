"""Everything the predictors promise, in one table: ``python -m benchmarks.prediction [--quick] [--sia] [--only PART]``

Joins the four parts, each of which also runs by itself (``python -m benchmarks.prediction_<part>``). A part's rows are
saved (``benchmarks.cells``) until a predictor, the part's other sources or the part itself changes, besides the cells
inside a part: what was stopped goes on where it stopped. ``--sia`` looks at GPU types that design did not
use: a look, to be noted in docs/looks/measurements.md. ``--fresh`` measures anew what depends on this machine's mood.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from types import ModuleType
from typing import Any

from benchmarks import prediction_layers, prediction_measurements, prediction_remaining, prediction_samples
from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.smoke import either

#: In the order of a job's life: before it runs, from its measurements, from samples, while it runs.
PARTS: dict[str, ModuleType] = {
    "layers": prediction_layers,
    "measurements": prediction_measurements,
    "samples": prediction_samples,
    "remaining": prediction_remaining,
}
#: All predictors: a part may use any of them through another.
_PREDICTORS = ("prediction/**/*.py", "prediction/layers/data/*.npz")


def rows(
    quick: bool, *, parts: Sequence[str] = tuple(PARTS), sia: bool = False, fresh: bool = False
) -> list[Row]:
    """The rows of all parts, one after the other."""
    found: list[Row] = []
    for name in parts:
        found += _part(name, "rows", PARTS[name], partial(PARTS[name].rows, quick), quick, fresh)
    if sia:
        found += _part(
            "measurements", "sia", prediction_measurements, prediction_measurements.sia_rows, False, fresh
        )
    return found


def _part(
    name: str, what: str, module: ModuleType, compute: Callable[[], list[Row]], quick: bool, fresh: bool
) -> list[Row]:
    began = time.monotonic()
    arguments: dict[str, Any] = {"part": name, "what": what, "quick": quick}
    setting = (f"prediction_{name}.py", "measure.py", "errors.py", *getattr(module, "SETTING", ()))
    sources = source_hash((*_PREDICTORS, *module.SOURCES), setting=setting)
    if fresh:
        arguments["fresh"] = time.time_ns()
    saved = cell("prediction-part", arguments, sources, lambda: {"rows": [asdict(row) for row in compute()]})
    found = [Row(**each) for each in saved["rows"]]
    print(f"{name}, {what}: {len(found)} rows, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def short(found: Sequence[Row]) -> list[str]:
    """What falls short of a must."""
    return [row.what.strip() for row in found if not row.holds]


def main(words: Sequence[str] | None = None) -> int:
    """Prints target beside figure; 1 where a must falls short."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer seeds and runs, no networks, no simulator"
    )
    parser.add_argument("--sia", action="store_true", help="also GPU types that design did not use: a look")
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="this part; may be repeated")
    parser.add_argument("--fresh", action="store_true", help="no part's saved rows")
    given = parser.parse_args(words)
    chosen = given.only or either(["measurements"], PARTS)
    parts = [name for name in PARTS if name in chosen]
    found = rows(given.quick, parts=parts, sia=given.sia, fresh=given.fresh)
    show("Prediction", found)
    promised = [row for row in found if row.must not in (float("inf"), float("-inf"))]
    missed = short(found)
    print(
        f"\n{len(promised) - len(missed)} of {len(promised)} musts hold"
        + (f"; not: {'; '.join(missed)}" if missed else "")
    )
    return 1 if either(False, bool(missed)) else 0


if __name__ == "__main__":
    sys.exit(main())

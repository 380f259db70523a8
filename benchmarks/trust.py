"""What a shared cluster must withstand: ``python -m benchmarks.trust [--only SECTION]``; exit code 1 if a target is missed.

    python -m benchmarks.trust [--only SECTION] [--seeds N] [--before]

Sections are those of ``benchmarks.trust_fairness`` (shares, lies, reservations), and every module ``benchmarks/trust_SECTION.py`` with a
function ``run() -> bool``, which prints each target beside its figure and returns whether all are met. Results are saved in cells, so
that a run may be stopped and taken up again.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks import trust_fairness
from benchmarks.smoke import either

MODULES = sorted(
    path.stem.removeprefix("trust_")
    for path in Path(__file__).parent.glob("trust_*.py")
    if "\ndef run() -> bool:" in path.read_text()
)
SECTIONS = [*trust_fairness.SECTIONS, *MODULES]


def main() -> int:
    """Runs the sections; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section; may be repeated")
    parser.add_argument(
        "--seeds", type=int, default=either(1, 20), help="seeds of each section that draws something"
    )
    parser.add_argument(
        "--before", action="store_true", help="shares and reservations off, in the sections about them"
    )
    asked = parser.parse_args()
    seeds = range(trust_fairness.FIRST_SEED, trust_fairness.FIRST_SEED + asked.seeds)
    met = True
    for name in asked.only or SECTIONS:
        print(f"== {name}", flush=True)
        if name in trust_fairness.SECTIONS:
            met = trust_fairness.section(name, seeds, before=asked.before) and met
        else:
            met = importlib.import_module(f"benchmarks.trust_{name}").run() and met
    # in the smoke form no promise is judged
    return either(0, 0 if met else 1)


if __name__ == "__main__":
    raise SystemExit(main())

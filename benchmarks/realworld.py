"""Predictions on other people's records: ``python -m benchmarks.realworld [--only SECTION]``; exit code 1 if a target is missed.

A section is a module ``benchmarks/realworld_SECTION.py`` with a function ``run() -> bool``, which prints each target beside its
figure and returns whether all are met. Results are saved in cells, so that a run may be stopped and taken up again. The records
are those of ``shared/data/realworld`` (or $COADAPT_DATA).
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.smoke import either

SECTIONS = sorted(
    path.stem.removeprefix("realworld_")
    for path in Path(__file__).parent.glob("realworld_*.py")
    if "\ndef run() -> bool:" in path.read_text()
)


def main() -> int:
    """Runs the sections; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section; may be repeated")
    wanted = parser.parse_args().only or SECTIONS
    met = True
    for name in wanted:
        print(f"== {name}")
        met = importlib.import_module(f"benchmarks.realworld_{name}").run() and met
    # in the smoke form no promise is judged
    return either(0, 0 if met else 1)


if __name__ == "__main__":
    raise SystemExit(main())

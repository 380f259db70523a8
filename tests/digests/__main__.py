"""``python -m tests.digests [PART ...]``: digests beside the recorded ones, exit code 1 where one differs.

``--record`` writes them anew instead, all of them. ``--json`` prints what was computed, for the test that asks a process of its own.
"""

from __future__ import annotations

import os

# sums depend on how many threads share them; before anything imports numpy
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import sys

import msgspec

from tests.digests.digest import fingerprint
from tests.digests.table import (
    PARTS,
    WORDS_MAY_CHANGE,
    Line,
    Recorded,
    lines,
    record,
    recorded,
)


def shown(line: Line) -> str:
    """A row of the table."""
    cells = [f"{line.name:<44}"]
    for part, same in (("whole", line.same), ("wordless", line.same_but_words)):
        pair = [getattr(each, part)[:10] if each else "-" * 10 for each in (line.recorded, line.now)]
        cells += [*pair, "yes" if same else "NO "]
    return "  ".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.digests")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--record", action="store_true", help="write all digests anew")
    parser.add_argument("--json", action="store_true", help="print what was computed, and compare nothing")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    names = list(PARTS) if asked.record else asked.parts or list(PARTS)
    now = {name: PARTS[name]() for name in names}
    if asked.json:
        found = Recorded(fingerprint=fingerprint(), parts=now)
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return 0
    if asked.record:
        record(now)
        return 0
    then = recorded()
    here = fingerprint()
    for name in sorted(here.keys() | then.fingerprint.keys()):
        if here.get(name) != then.fingerprint.get(name):
            print(f"recorded elsewhere: {name} was {then.fingerprint.get(name)!r}, is {here.get(name)!r}")
    print(f"{'NAME':<44}  {'RECORDED A':<10}  {'NOW A':<10}  =    {'RECORDED B':<10}  {'NOW B':<10}  =")
    differs = 0
    for part in names:
        for line in lines(then.parts[part], now[part]):
            print(shown(msgspec.structs.replace(line, name=f"{part}/{line.name}")))
            differs += not (line.same_but_words and (line.same or WORDS_MAY_CHANGE))
    print(f"{differs} differ")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())

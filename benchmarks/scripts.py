"""``python -m benchmarks.scripts [NAME ...]``: scripts as other people write them, under ``coadapt.torch`` with the documented lines.

Each script of ``benchmarks/gallery`` must be right or refused in one line at the first try. Those that run must be exact, to 1e-9 in
float64, through 1 -> 3 -> 2 replicas and two kills. Wrongs planted in a script (``gallery_wrongs``) must be found before 50 steps,
or be no wrong. Every cell is saved (``benchmarks.cells``), so that the run may be stopped and taken up again.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import gallery_wrongs
from benchmarks.cells import cell, source_hash
from benchmarks.gallery_runs import GALLERY, GalleryRun, changed_lines, refusals
from benchmarks.measure import Row, show
from benchmarks.smoke import few
from coadapt.torch.launch import LaunchError

_TOLERANCE = 1e-9
_SOURCES = ("torch/**/*.py",)
#: In the smoke form: one that runs, one that is refused.
_FIRST = ("finetune", "dcgan")


def expected(script: Path) -> tuple[str, str]:
    """("right", "") or ("refused", the message)."""
    kind, _, message = script.read_text().splitlines()[0].removeprefix("# expect: ").partition(": ")
    return kind, message


def outcome(script: Path, directory: Path) -> dict[str, Any]:
    """How a script behaves: right, refused in one line, or neither, and why."""
    kind, message = expected(script)
    run = GalleryRun(script, directory)
    if kind == "refused":
        codes, said = run.to_its_end("first", 2)
        ours = [line for line in refusals(said) if message in line]
        fine = bool(ours) and all(code not in (0, 143) for code in codes[:1]) and "Traceback" not in said
        return {"outcome": "refused" if fine else "wrong", "why": ours[0] if ours else said[-1500:]}
    try:
        found = run.exact(_TOLERANCE)
    except LaunchError as error:
        return {"outcome": "wrong", "why": str(error)[-1500:]}
    right = found.same_examples and found.largest_jump <= _TOLERANCE
    why = f"{found.steps} steps, {found.repeated} made again, largest difference {found.largest_jump:.1e}"
    return {"outcome": "right" if right else "wrong", "why": why, "difference": found.largest_jump}


def _saved(name: str, arguments: dict[str, Any], more: tuple[str, ...], compute: Any) -> dict[str, Any]:
    sources = source_hash(_SOURCES, setting=("scripts.py", "gallery_runs.py", "gallery_data.py", *more))

    def in_directory() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="coadapt-gallery-") as directory:
            return dict(compute(Path(directory)))

    return cell(name, arguments, sources, in_directory)


def gallery(names: list[str]) -> list[Row]:
    """Right or refused at the first try, exactness, changed lines."""
    scripts = [GALLERY / f"{name}.py" for name in names] or sorted(GALLERY.glob("*.py"))
    if not names:
        scripts = list(
            few(
                [*(GALLERY / f"{name}.py" for name in _FIRST), *(s for s in scripts if s.stem not in _FIRST)],
                2,
            )
        )
    good, differences = 0, [0.0]
    for script in scripts:
        found = _saved(
            "scripts-gallery",
            {"script": script.stem},
            (f"gallery/{script.name}",),
            lambda directory, script=script: outcome(script, directory),
        )
        good += found["outcome"] == expected(script)[0]
        differences.append(found.get("difference", 0.0))
        print(
            f"   {script.stem:<18} {found['outcome']:<8} {changed_lines(script):>3} lines  {found['why']}",
            flush=True,
        )
    lines = [changed_lines(script) for script in scripts]
    return [
        Row("scripts right or refused in one line at the first try", good, len(scripts), at_least=True),
        Row("of those that run: largest difference, 1 -> 3 -> 2, two kills", max(differences), _TOLERANCE),
        Row("changed lines, median", statistics.median(lines), 6, 5),
    ]


def wrongs(names: list[str]) -> list[Row]:
    """Planted wrongs: found before 50 steps, or right."""
    cases = [case for case in gallery_wrongs.CASES if not names or case.name in names]
    cases = list(few(cases, 2))
    found_or_right = 0
    for case in cases:
        found = _saved(
            "scripts-wrong",
            {"case": case.name},
            ("gallery_wrongs.py",),
            lambda directory, case=case: case.run(directory),
        )
        found_or_right += found["outcome"] in ("found", "right")
        print(f"   {case.name:<34} {found['outcome']:<6} {found['why']}", flush=True)
    return [
        Row(
            f"of {len(cases)} planted wrongs found before 50 steps, or right",
            found_or_right,
            len(cases) * 0.9,
            len(cases),
            at_least=True,
        )
    ]


def main() -> int:
    """Run what the arguments name; 1 if a must is not reached."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    names = sys.argv[1:]
    known = {path.stem for path in GALLERY.glob("*.py")}
    planted = {case.name for case in gallery_wrongs.CASES}
    if unknown := [name for name in names if name not in known | planted | {"wrongs", "gallery"}]:
        print(
            f"no script or planted wrong {unknown[0]!r}; there are {', '.join(sorted(known | planted))}",
            file=sys.stderr,
        )
        return 2
    rows = []
    if not names or "gallery" in names or known & set(names):
        rows += gallery([name for name in names if name in known])
    if not names or "wrongs" in names or planted & set(names):
        rows += wrongs([name for name in names if name in planted])
    return 0 if show("scripts of others", rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Public records of ``shared/data/realworld``: logs as found, and streams of (work, seconds) of MLPerf and AlgoPerf runs."""

from __future__ import annotations

import csv
import gzip
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.published import data_dir
from benchmarks.smoke import either
from coadapt.prediction.training_log import LogReader, segments

#: Runs of one round, organisation and benchmark that count: they are repetitions of each other.
REPETITIONS = 3


def folder() -> Path:
    """Where the records are; exits with one line where they are not."""
    path = data_dir() / "realworld"
    if not path.is_dir():
        raise SystemExit(f"this benchmark needs the records in {path} (or $COADAPT_DATA)")
    return path


@dataclass(frozen=True, slots=True)
class Log:
    """A log as found: its lines, and the log's own clock and progress after each line that tells them."""

    name: str
    family: str
    text: str

    def cut(self, share: float) -> tuple[str, float] | None:
        """The part of the log up to a share of its time, and the seconds that are left then; None without a clock."""
        marks = _marks(self.text)
        if len(marks) < 4 or marks[-1][1] <= marks[0][1]:
            return None
        begin, end = marks[0][1], marks[-1][1]
        at = next(mark for mark in marks if mark[1] - begin >= share * (end - begin))
        return "\n".join(segments(self.text)[: at[0] + 1]) + "\n", end - at[1]


@lru_cache(maxsize=2)
def _marks(text: str) -> list[tuple[int, float]]:
    """(number of the line, clock) of the lines at which the progress of the best format moves."""
    reader = LogReader()
    reader.feed(text)
    final = reader.progress()
    if final is None or not final.clock:
        return []
    reader, found, done = LogReader(), [], None
    for number, line in enumerate(segments(text)):
        if reader.line(line) is None:
            continue
        now = reader.progress()
        if now is not None and (now.unit, now.clock) == (final.unit, final.clock) and now.done != done:
            found.append((number, now.clock_s))
            done = now.done
            if now.total is not None and now.done >= now.total:
                break
    return found


def logs() -> Iterator[Log]:
    """Logs as found, by name."""
    with tarfile.open(folder() / "logs.tar.gz") as archive:
        members = sorted((each for each in archive.getmembers() if each.isfile()), key=lambda each: each.name)
        for member in members[:: either(6, 1)]:
            stream = archive.extractfile(member)
            assert stream is not None
            name = Path(member.name).name
            text = stream.read().decode("utf-8", "replace")
            yield Log(name, family_of(name), text)


def family_of(name: str) -> str:
    """The family that a log is left out with: its kind, for MLPerf also the vendor."""
    parts = name.removesuffix(".log").split("_")
    return (
        "_".join(parts[:3:2])
        if parts[0] == "mlperf"
        else "_".join(parts[:2])
        if parts[0].startswith("gluon")
        else parts[0]
    )


@dataclass(frozen=True, slots=True)
class Stream:
    """Progress of one run: (work, seconds), and the groups that it is left out with."""

    source: str
    round: str
    vendor: str
    benchmark: str
    points: tuple[tuple[float, float], ...]


def streams() -> list[Stream]:
    """Runs of MLPerf and AlgoPerf with at least eight points."""
    return [*_mlperf(), *_algoperf()]


def rows(name: str) -> Iterator[dict[str, str]]:
    """Records of a file, by name of the column."""
    path = folder() / name
    with gzip.open(path, "rt") if name.endswith(".gz") else path.open() as stream:
        yield from csv.DictReader(stream)


def _mlperf() -> Iterator[Stream]:
    runs = {row["run"]: row for row in rows("mlperf_runs.csv.gz")}
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows("mlperf_evals.csv.gz"):
        points[row["run"]].append((float(row["x"]), float(row["seconds"])))
    taken: dict[tuple[str, ...], int] = defaultdict(int)
    for number, found in points.items():
        run = runs.get(number)
        rising = _rising(found)
        if run is None or len(rising) < 8:
            continue
        group = (run["round"], run["org"], run["benchmark"], run["system"])
        taken[group] += 1
        if taken[group] <= REPETITIONS:
            yield Stream("mlperf", run["round"], run["org"], run["benchmark"], rising)


def _algoperf() -> Iterator[Stream]:
    about = {row["curve"]: row for row in rows("algoperf_index.csv")}
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows("algoperf_curves.csv.gz"):
        points[row["curve"]].append((float(row["step"]), float(row["seconds"])))
    taken: dict[tuple[str, ...], int] = defaultdict(int)
    for number, found in points.items():
        named = about.get(number)
        rising = _rising(found)
        if named is None or len(rising) < 8:
            continue
        group = (named["leaderboard"], named["ruleset_submission"], named["base"])
        taken[group] += 1
        if taken[group] <= 1:
            yield Stream("algoperf", *group, rising)


def _rising(found: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    kept: list[tuple[float, float]] = []
    for work, seconds in sorted(found, key=lambda each: each[1]):
        if not kept or (work > kept[-1][0] and seconds > kept[-1][1]):
            kept.append((work, seconds))
    return tuple(kept)

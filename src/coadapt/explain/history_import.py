"""Turns records of finished runs into the pool of past jobs: ``import_history``, which ``coadapt history import`` calls.

Read are training logs of any known format (TensorBoard event files, MLPerf logs, exported histories), tables with a row for each run (exports of
W&B and MLflow), folders of all these, and our own store. A run becomes a ``PastJob``: name, batch size, total work, and the step time on
the GPUs it ran on, as far as the record tells. A run without a time, or that has not ended, teaches nothing and is left out with its reason.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from coadapt.errors import InputError
from coadapt.explain.log_watch import read_log
from coadapt.model import Configuration, Measurement
from coadapt.prediction.remaining.eta_estimate import seconds_per_work
from coadapt.prediction.remaining.past_jobs import PastJob, Pool, add
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable, observe
from coadapt.scheduler.state import saved_state
from coadapt.scheduler.state.state import SchedulerState
from coadapt.store.open import open_store
from coadapt.store.pool_file import impossible, read_pool, write_pool

#: Names of columns in a table of runs, in lower case, without ``params.`` and ``metrics.``.
_COLUMNS = {
    "name": ("tags.mlflow.runname", "run_name", "name", "benchmark", "run_id", "run", "id"),
    "seconds": ("_runtime", "runtime", "duration_s", "duration", "seconds", "elapsed_s"),
    "begin": ("start_time",),
    "end": ("end_time",),
    "steps": ("_step", "global_step", "steps", "max_steps", "trainer/global_step"),
    "epochs": ("epochs_to_target", "epochs", "num_epochs", "max_epochs", "epoch"),
    "samples": ("samples_to_target", "total_samples", "samples"),
    "data_size": ("train_samples", "data_size", "num_examples", "dataset_size"),
    "batch": ("global_batch", "global_batch_size", "total_batch_size", "batch_size", "batch"),
    "gpus": ("n_accel", "num_gpus", "gpus", "world_size", "gpu_count"),
    "gpu_type": ("accelerator", "gpu_type", "gpu"),
    "nodes": ("nodes", "num_nodes"),
    "status": ("status", "state"),
}
_FAILED = frozenset(("failed", "crashed", "killed", "running", "aborted"))
_NAMES = {".log", ".txt", ".out", ".csv", ".gz", ".json", ".jsonl"}
#: Of one table or folder: more runs than a pool keeps.
_MOST_RUNS = 20_000
#: A run that came this far has ended: bucketed samplers skip the last batches.
_ENDED = 0.95
_YEAR_S = 366 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts that the user gives about runs because their records do not tell them."""

    name: str | None = None
    gpu_type: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    batch: float | None = None
    data_size: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of an import: runs added, runs that the pool knew already, and what was left out, with the reason."""

    added: int
    known: int
    left_out: tuple[tuple[str, str], ...]
    jobs: int

    def to_dict(self) -> dict[str, object]:
        """Plain data with stable keys."""
        return {
            "added": self.added,
            "known": self.known,
            "left_out": [list(each) for each in self.left_out],
            "jobs": self.jobs,
        }


def import_history(
    paths: Iterable[str | Path], *, pool: str | Path, facts: RunFacts | None = None
) -> Imported:
    """Add the runs in files, folders and stores to the pool in a file, which is made if it does not exist.

    Args:
        paths: What to import.
        pool: The file of the pool.
        facts: What is known of the runs besides.
    """
    given = facts or RunFacts()
    file = Path(pool)
    known = read_pool(file) if file.exists() else Pool()
    # jobs of one store may be alike to the last digit: a run is known if the pool has as many of them
    before = Counter(_identity(job) for job in known.jobs)
    seen: Counter[tuple[object, ...]] = Counter()
    added = repeated = 0
    left_out: list[tuple[str, str]] = []
    files: set[Path] = set()
    for path in paths:
        for found in _runs(Path(path), given, files):
            if isinstance(found, tuple):
                left_out.append(found)
                continue
            mark = _identity(found)
            seen[mark] += 1
            if seen[mark] <= before[mark]:
                repeated += 1
                continue
            if problem := impossible(Pool(jobs=(found,))):
                left_out.append((found.name, problem))
                continue
            known, added = add(known, found), added + 1
    if added:
        write_pool(file, known)
    return Imported(added=added, known=repeated, left_out=tuple(left_out), jobs=len(known.jobs))


def _identity(job: PastJob) -> tuple[object, ...]:
    return job.name, round(job.finished_at, 3), job.total_work, job.batch, len(job.table.rows)


def _runs(path: Path, facts: RunFacts, files_read: set[Path]) -> Iterator[PastJob | tuple[str, str]]:
    if path.resolve() in files_read:
        return
    files_read.add(path.resolve())
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file() and _is_record(each))
        if not files:
            yield str(path), "no logs, event files or tables in this folder"
        for each in files[:_MOST_RUNS]:
            yield from _runs(each, replace(facts, name=facts.name or _folder_name(each, path)), files_read)
        return
    try:
        with path.open("rb") as stream:
            head = stream.read(4096)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if head.startswith(b"SQLite format 3\0"):
        yield from _of_store(path)
    elif (table := _table(path, head)) is not None:
        yield from _of_table(table, path, facts)
    else:
        yield _of_log(path, facts)


def _is_record(path: Path) -> bool:
    metric_file = path.parent.name == "metrics" and not path.suffix
    return path.suffix in _NAMES or "tfevents" in path.name or metric_file


def _folder_name(path: Path, top: Path) -> str | None:
    """The name of an event file's run is that of its folder; other files are named by themselves."""
    if "tfevents" not in path.name:
        return None
    return path.parent.name if path.parent != top else top.name


def _of_store(path: Path) -> Iterator[PastJob | tuple[str, str]]:
    try:
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as database:
            tables = {
                name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
    except sqlite3.Error as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not {"meta", "lease"} <= tables:
        yield str(path), "a SQLite file, but not a store of coadapt"
        return
    log = open_store(path).log()
    try:
        newest = log.newest_snapshot()
        state = SchedulerState() if newest is None else saved_state.load(newest[1])
        for record in log.read(state.seq):
            state.apply(record)
    finally:
        log.close()
    yield from state.pool.jobs
    if not state.pool.jobs:
        yield str(path), "no job has ended in this store"


def _of_log(path: Path, facts: RunFacts) -> PastJob | tuple[str, str]:
    reader = read_log(path, steps_per_epoch=None, batch=facts.batch)
    state = reader.progress()
    if state is None:
        return str(path), "no recognised progress"
    pace = seconds_per_work(state.pace)
    if pace is None or not state.clock_s > 0:
        return str(path), "no times"
    if state.total is not None and state.done < _ENDED * state.total and not state.ended:
        return str(path), f"not ended: {state.done:g} of {state.total:g} {state.unit}"
    declared = reader.declared
    batch, size = facts.batch or declared.batch, facts.data_size or declared.samples
    samples, step_s = _amounts(state.unit, state.done, pace.value, batch, size)
    return _past_job(
        facts.name or _stem(path),
        seconds=state.clock_s,
        samples=samples,
        step_s=step_s,
        batch=batch,
        data_size=size,
        finished_at=path.stat().st_mtime,
        facts=replace(facts, gpus=facts.gpus or (None if declared.gpus is None else int(declared.gpus))),
        declared=None,
    )


def _amounts(
    unit: str, done: float, pace_s: float, batch: float | None, size: float | None
) -> tuple[float | None, float | None]:
    """Samples of the run, and seconds of a step; None where they cannot be told."""
    if unit in ("steps", "batches"):
        return (None if batch is None else done * batch), pace_s
    if unit == "samples":
        return done, (None if batch is None else pace_s * batch)
    if unit == "epochs" and size is not None:
        return done * size, (None if batch is None else pace_s * batch / size)
    return None, None


def _past_job(
    name: str,
    *,
    seconds: float,
    samples: float | None,
    step_s: float | None,
    batch: float | None,
    data_size: float | None,
    finished_at: float,
    facts: RunFacts,
    declared: float | None,
) -> PastJob:
    table: StepTimeTable = EMPTY_TABLE
    if facts.gpus and batch and step_s and math.isfinite(step_s) and step_s > 0:
        config = Configuration(
            gpu_type=facts.gpu_type or "gpu",
            nodes=min(facts.nodes or 1, facts.gpus),
            replicas=facts.gpus,
            atomic_batch=max(round(batch / facts.gpus), 1),
        )
        table = observe(table, Measurement(config=config, count=1, step_s=step_s, sync_s=0.0))
    # without a batch size, work is counted in seconds
    work = samples if batch is not None else seconds
    return PastJob(
        name=name,
        batch=batch,
        data_size=data_size,
        total_work=work,
        declared_work=declared,
        finished_at=finished_at,
        table=table,
    )


def _stem(path: Path) -> str:
    return path.name.split(".")[0] or path.name


def _table(path: Path, head: bytes) -> list[dict[str, str]] | None:
    """The rows of a table with a row for each run; None if the file is none."""
    if path.suffix not in (".csv", ".gz"):
        return None
    try:
        data = gzip.decompress(path.read_bytes()) if head.startswith(b"\x1f\x8b") else path.read_bytes()
    except (OSError, EOFError, gzip.BadGzipFile):
        return None
    rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig", "replace")))
    try:
        header = {_plain(name) for name in rows.fieldnames or ()}
        timed = header & {*_COLUMNS["seconds"]} or {"start_time", "end_time"} <= header
        if (
            not timed
            or not header & {*_COLUMNS["name"]}
            or header & {"_timestamp", "_step"} == {"_timestamp", "_step"}
        ):
            return None
        return [
            {_plain(key): (value or "").strip() for key, value in row.items() if key}
            for row, _ in zip(rows, range(_MOST_RUNS), strict=False)
        ]
    except csv.Error:
        return None


def _plain(name: str) -> str:
    return name.strip().lower().removeprefix("params.").removeprefix("metrics.")


def _of_table(rows: list[dict[str, str]], path: Path, facts: RunFacts) -> Iterator[PastJob | tuple[str, str]]:
    for line, row in enumerate(rows, 2):
        where = f"{path}:{line}"
        if _text(row, "status").lower() in _FAILED:
            yield where, f"the run is {_text(row, 'status').lower()}"
            continue
        seconds = _number(row, "seconds") or _between(row)
        if seconds is None or not 0 < seconds < _YEAR_S:
            yield where, "no duration"
            continue
        batch = facts.batch or _number(row, "batch")
        size = facts.data_size or _number(row, "data_size")
        samples, steps, epochs = _number(row, "samples"), _number(row, "steps"), _number(row, "epochs")
        if samples is None and steps and batch:
            samples = steps * batch
        if samples is None and epochs and size:
            samples = epochs * size
        if not steps and samples and batch:
            steps = samples / batch
        gpus = facts.gpus or _number(row, "gpus")
        nodes = facts.nodes or _number(row, "nodes")
        yield _past_job(
            facts.name or _text(row, "name") or _stem(path),
            seconds=seconds,
            samples=samples,
            step_s=seconds / steps if steps else None,
            batch=batch,
            data_size=size,
            finished_at=_moment(_text(row, "end")) or path.stat().st_mtime,
            facts=replace(
                facts,
                gpus=int(gpus) if gpus else None,
                nodes=int(nodes) if nodes else None,
                gpu_type=facts.gpu_type or _gpu_name(_text(row, "gpu_type")),
            ),
            declared=None,
        )


def _text(row: Mapping[str, str], kind: str) -> str:
    return next((row[name] for name in _COLUMNS[kind] if row.get(name)), "")


def _number(row: Mapping[str, str], kind: str) -> float | None:
    for name in _COLUMNS[kind]:
        try:
            found = float(row.get(name, "").replace(",", ""))
        except ValueError:
            continue
        if math.isfinite(found) and 0 < found < 1e18:
            return found
    return None


def _between(row: Mapping[str, str]) -> float | None:
    begin, end = _moment(_text(row, "begin")), _moment(_text(row, "end"))
    return end - begin if begin is not None and end is not None else None


def _moment(text: str) -> float | None:
    """Seconds of a date, or of a number of (milli)seconds."""
    try:
        number = float(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError):
            return None
    return number / 1000 if number > 1e11 else number


def _gpu_name(text: str) -> str | None:
    """``NVIDIA A100-SXM4-80GB`` as ``a100``."""
    words = re.findall(r"[a-z]{1,4}\d{2,4}[a-z]{0,2}", text.lower())
    return words[0] if words else (re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or None)

"""The result of a simulation: the summary, one row per job, and output files; and opening the event log of a run.

An event log is found by the directory that ``coadapt simulate -o`` wrote, by its own path, or by a controller's store.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coadapt.errors import InputError
from coadapt.model import Cluster, Record, decode, encode, format_cluster
from coadapt.model.snapshot import shown_state
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.report import History, LowerBound, Run, Summary, bound_sentence, render
from coadapt.report.chrome_trace import chrome_trace
from coadapt.report.job_history import JobHistory
from coadapt.report.output_files import fresh_directory
from coadapt.store import SqliteLog
from coadapt.units import format_duration

if TYPE_CHECKING:
    import pandas as pd

EVENTS = "events.jsonl.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One finished simulation."""

    name: str
    source: str
    cluster: Cluster
    seed: int
    summary: Summary
    history: History
    rho: Mapping[str, float]
    notes: Sequence[str] = ()
    #: The event log, if it was kept.
    records: Sequence[Record] | None = field(default=None, repr=False)
    #: Past jobs known at the end, if they were kept.
    pool: Pool | None = field(default=None, repr=False)
    #: What no policy can be better than, if that was asked for.
    bound: LowerBound | None = None

    def __repr__(self) -> str:
        """One line; the fields of a week's run would fill pages."""
        times = (("average JCT", self.summary.avg_jct_s), ("makespan", self.summary.makespan_s))
        figures = "".join(f", {what} {format_duration(s)}" for what, s in times if s is not None)
        return (
            f"<Result {self.name} on {format_cluster(self.cluster)}: {self.summary.num_jobs:,} jobs{figures}>"
        )

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """One plain row per job, in order of submission; times in seconds."""
        return [_row(job, self.rho.get(name)) for name, job in self.history.jobs.items()]

    def to_pandas(self) -> pd.DataFrame:
        """``jobs`` as a data frame; needs pandas."""
        return data_frame(self.jobs)

    def write(self, directory: str | Path, *, force: bool = False) -> Path:
        """Writes summary.json, jobs.csv, events.jsonl.gz (if kept), report.html and trace.json."""
        with fresh_directory(Path(directory), force=force, by="force=True") as staging:
            if self.records is not None:
                with event_file(staging) as add:
                    for record in self.records:
                        add(record)
            self.write_files(staging)
        return Path(directory)

    def write_files(self, directory: Path) -> None:
        """Writes all result files except the events."""
        about = {
            "policy": self.name,
            "cluster": format_cluster(self.cluster),
            "trace": self.source,
            "seed": self.seed,
        }
        summary = msgspec.json.format(msgspec.json.encode({**about, **self.plain()}), indent=2)
        (directory / "summary.json").write_bytes(summary + b"\n")
        write_csv(directory / "jobs.csv", self.jobs)
        title = f"{self.name} on {format_cluster(self.cluster)}: {Path(self.source).name}"
        page = render([self.run], title=title, notes=[*self.notes, *self.bound_sentences])
        (directory / "report.html").write_text(page, encoding="utf-8")
        (directory / "trace.json").write_bytes(msgspec.json.encode(chrome_trace(self.history)))

    def plain(self) -> dict[str, Any]:
        """The summary's stable keys, in their order; with a lower bound also what it says."""
        if self.bound is None:
            return plain(self.summary)
        bound = {**msgspec.structs.asdict(self.bound), "gap": self.bound.gap}
        return {**plain(self.summary), "vs_bound": self.vs_bound, "bound": bound}

    @property
    def vs_bound(self) -> float | None:
        """Average JCT to its lower bound; None where there is none, or where jobs did not finish."""
        jct_s = self.summary.avg_jct_s
        if self.bound is None or self.summary.num_unfinished or jct_s is None:
            return None
        return jct_s / self.bound.avg_jct_s

    @property
    def bound_sentences(self) -> list[str]:
        """Returns the sentences for users about the lower bound."""
        if self.bound is None or self.vs_bound is None:
            return []
        return [bound_sentence(self.bound, self.name, self.vs_bound * self.bound.avg_jct_s)]

    @property
    def run(self) -> Run:
        """Returns the run as ``report.render`` takes it."""
        return Run(self.name, self.history, self.summary, self.rho)


def plain(summary: Summary) -> dict[str, Any]:
    """Returns the summary as plain data with stable keys, in their order."""
    return msgspec.structs.asdict(summary)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows with the same keys as CSV with a header."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def data_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A data frame, where pandas is installed."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("data frames need pandas: pip install 'coadapt[frames]'") from None
    return pd.DataFrame(list(rows))


@contextmanager
def event_file(directory: Path) -> Iterator[Callable[[Record], None]]:
    """Gives a function that appends records to the directory's event log; the same records, the same bytes."""
    with (
        (directory / EVENTS).open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=3, mtime=0) as stream,
    ):

        def add(record: Record) -> None:
            stream.write(encode(record) + b"\n")

        yield add


def _row(job: JobHistory, rho: float | None) -> dict[str, Any]:
    return {
        "job": job.id,
        "user": job.spec.user,
        "team": job.spec.team,
        "profile": job.spec.profile,
        "state": job.outcome or shown_state(job.phase).lower(),
        "submit_s": job.submitted_at,
        "start_s": job.started_at,
        "finish_s": job.ended_at,
        "jct_s": job.jct_s,
        "wait_s": job.waited_s,
        "gpus_requested": job.spec.requested_gpus,
        "gpus_mean": job.mean_gpus,
        "gpu_hours": job.held_gpu_s / 3600,
        "restarts": job.restarts,
        "efficiency": job.mean_efficiency,
        "rho": rho,
    }


_GZIP, _SQLITE = b"\x1f\x8b", b"SQLite format 3\0"


def read_events(name: str) -> Iterator[Record]:
    """The records of a run, in their order; InputError, at the latest while they are read, where they cannot be had."""
    path = Path(name)
    if path.is_dir():
        path /= EVENTS
        if not path.exists():
            raise InputError(
                f"{name} contains no {EVENTS}; give a directory that 'coadapt simulate TRACE -o DIR' wrote"
            )
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_SQLITE))
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
    if start == _SQLITE:
        return _stored(path)
    return _lines(path, packed=start.startswith(_GZIP))


def _stored(path: Path) -> Iterator[Record]:
    log = SqliteLog(path)
    try:
        yield from log.read()
    finally:
        log.close()


def _lines(path: Path, *, packed: bool) -> Iterator[Record]:
    whole = 0
    with gzip.open(path) if packed else path.open("rb") as stream:
        try:
            for line in stream:
                yield decode(line)
                whole += 1
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"{path}:{whole + 1} is not a record of an event log ({error}); 'coadapt simulate TRACE -o DIR' writes one"
            ) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path} is damaged after line {whole}: {error}") from None
    if not whole:
        raise InputError(
            f"{path} is empty: no event was recorded; 'coadapt simulate TRACE -o DIR' writes a log"
        )

"""The size of the store: 500 jobs that report every 10 s, for a day in virtual time.

The scheduler is the one that ``coadapt serve`` makes; its actions are confirmed at once. Jobs end and others take their
place. Reports have noise in every figure. All records go to a SQLite store, with snapshots as often as the controller
writes them, and it is compacted every 15 minutes of virtual time as the supervisor does. Measured are the bytes of the
file: at the end, and how much it grew between the middle and the end, which is what a further day costs. At the end the
state at random retained moments is folded again and compared with what it was.
"""

from __future__ import annotations

import hashlib
import random
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cells import cell, source_hash
from benchmarks.smoke import either
from benchmarks.trust_fuzz import confirmed
from coadapt.live.compaction import compact_store
from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    Batch,
    Configuration,
    ControllerStarted,
    JobFinished,
    JobSpec,
    JobSubmitted,
    Measured,
    Measurement,
    NodeJoined,
    Record,
    Resources,
    Role,
    Woke,
    parse_cluster,
)
from coadapt.model.snapshot import HOLDING
from coadapt.runtime.controller import scheduler_of
from coadapt.runtime.loop import SNAPSHOT_EVERY
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.scheduler.state.compaction import MARK_S
from coadapt.store import open_store
from coadapt.store.log import SqlLog
from coadapt.wire.serve_options import ServeOptions

#: Bytes a day that are allowed.
MOST_BYTES = 100e6
JOBS, HOURS, REPORT_S = 500, 24.0, 10.0
_COMPACT_S, _BEGIN = 900.0, 1.7e9
_APPEND = 500
_DAY_S = 86400.0
_SOURCES = ("model/*.py", "scheduler/**/*.py", "store/*.py", "live/compaction.py", "policies/coadapt/*.py")


def _spec(number: int) -> JobSpec:
    return JobSpec(
        name=f"resnet-{number % 7}",
        user=f"user-{number % 20}",
        roles=(Role(min=1, max=1 + number % 2, demand=Resources(gpus=1)),),
        requested=1,
        requested_batch=128,
        batch=Batch(initial=128, max=1024, per_gpu_min=32, per_gpu_max=256),
        epochs=90.0,
        data_size=1_281_167,
        target="val_acc>=0.76" if number % 2 else None,
        command=("python", "train.py", "--lr", "0.1", "--seed", str(number)),
        code=hashlib.sha256(str(number % 50).encode()).hexdigest(),
        preemptible=True,
    )


class Day:
    """A cluster whose jobs report; its records go to a store."""

    def __init__(self, log: SqlLog, jobs: int, rng: random.Random) -> None:
        self.log, self.rng, self.jobs = log, rng, jobs
        self.scheduler = scheduler_of(ServeOptions(policy=either("fifo", "coadapt")))
        self.now, self.seq, self.saved = _BEGIN, -1, -1
        self.unwritten: list[Record] = []
        self.submitted = self.reports = self.decisions = 0
        #: Digests of the state at marks: by the number of the last record before.
        self.marks: dict[int, str] = {}
        self.ends: dict[str, float] = {}
        self.work: dict[str, float] = {}

    def take(self, event: AnyEvent) -> None:
        """Handles one fact, and confirms what follows from it."""
        waiting = [event]
        for one in waiting:  # grows on the way
            if self.now // MARK_S != self.scheduler.state.now // MARK_S and self.seq >= 0:
                self.marks[self.seq] = _digest(self.scheduler.state)
            self.seq += 1
            record = Record(seq=self.seq, at=self.now, event=one)
            answer = self.scheduler.handle(record)
            self.unwritten.append(record)
            for decided in answer:
                self.seq += 1
                self.decisions += 1
                self.unwritten.append(Record(seq=self.seq, at=self.now, event=decided))
                if isinstance(decided, ActionsIssued):
                    waiting += confirmed(decided)
        if len(self.unwritten) >= _APPEND:
            self.write()

    def write(self) -> None:
        """Appends what was not written yet; a snapshot now and then."""
        self.log.append(self.unwritten)
        self.unwritten = []
        if self.seq - self.saved >= SNAPSHOT_EVERY:
            self.saved = self.seq
            self.log.save_snapshot(self.seq, saved_state.save(self.scheduler.state))

    def submit(self) -> None:
        """One more job, which ends after some hours."""
        self.submitted += 1
        name = f"resnet-{self.submitted % 7}-{self.submitted}"
        self.ends[name] = self.now + self.rng.uniform(1, 15) * 3600.0
        self.take(JobSubmitted(job=name, spec=_spec(self.submitted)))

    def tick(self) -> None:
        """Ten seconds: every job that runs reports, those whose time has come end."""
        begin, state = self.now, self.scheduler.state
        self._wake()
        names = [name for name in list(state.active) if state.jobs[name].phase in HOLDING]
        for place, name in enumerate(names):
            job = state.jobs[name]
            self.now = max(self.now, begin + REPORT_S * place / len(names) + 0.004 * self.rng.random())
            self._wake()
            if job.phase not in HOLDING:
                continue
            if self.now >= self.ends[name]:
                self.take(JobFinished(job=name, attempt=job.attempt, outcome="succeeded", exit_code=0))
                self.submit()
            else:
                self.reports += 1
                self.take(Measured(job=name, attempt=job.attempt, measurement=self._measurement(name)))
        self.now = max(self.now, begin + REPORT_S)

    def _wake(self) -> None:
        wake_at = self.scheduler.wake_at
        if wake_at is not None and wake_at <= self.now:
            self.take(Woke())

    def _measurement(self, name: str) -> Measurement:
        rng, job = self.rng, self.scheduler.state.jobs[name]
        replicas = max(job.held.replicas, 1)
        step_s = 0.21 * rng.lognormvariate(0, 0.02)
        count = int(REPORT_S / step_s)
        work = self.work[name] = self.work.get(name, 0.0) + 128.0 * replicas * count
        progress = work / (90.0 * 1_281_167)
        return Measurement(
            config=Configuration(nodes=1, replicas=replicas, atomic_batch=128, gpu_type="gpu"),
            count=count,
            step_s=step_s,
            step_var=(0.01 * step_s) ** 2 * rng.lognormvariate(0, 0.3),
            sync_s=0.03 * rng.lognormvariate(0, 0.1) if replicas > 1 else 0.0,
            sync_var=1e-5 * rng.lognormvariate(0, 0.3) if replicas > 1 else 0.0,
            grad_sqr=rng.lognormvariate(0, 0.3),
            grad_var=(1 + 9 * progress) * rng.lognormvariate(0, 0.3),
            work=work,
            epoch=work / 1_281_167,
            metrics={
                "loss": 6.9 * rng.lognormvariate(-progress, 0.05),
                "val_acc": progress * rng.uniform(0.6, 0.7),
            },
        )


def _digest(state: SchedulerState) -> str:
    # as a reader of the log has it: whole numbers of reasons become floats there
    return hashlib.sha256(saved_state.save(saved_state.load(saved_state.save(state)))).hexdigest()


def run_day(jobs: int, hours: float) -> dict[str, Any]:
    """Writes the day; returns bytes, counts and how many moments were compared."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        with closing(open_store(path, synchronous="OFF").log()) as log:
            day = Day(log, jobs, random.Random(5))
            day.take(ControllerStarted(version="benchmark"))
            for node in parse_cluster(f"{-(-jobs // 8)}x8").nodes:
                day.take(NodeJoined(node=node))
            for _ in range(jobs):
                day.submit()
            began, compacted_at, middle, peak, compact_cpu_s = day.now, day.now, 0, 0, 0.0
            while day.now < began + hours * 3600.0:
                day.tick()
                if day.now - compacted_at >= _COMPACT_S:
                    day.write()
                    compacted_at = day.now
                    peak = max(peak, log.size())
                    cpu = time.process_time()
                    compact_store(log, now=day.now)
                    compact_cpu_s += time.process_time() - cpu
                    if not middle and day.now >= began + hours * 1800.0:
                        middle = log.size()
            day.write()
            compact_store(log, now=day.now)
            compared, wrong = _compare(log, day, either(2, 12))
            ((packs, packed, tail),) = log._database.rows(
                "SELECT (SELECT coalesce(sum(length(data)), 0) FROM packs), (SELECT coalesce(max(last), -1) FROM packs),"
                " (SELECT count(*) FROM log)"
            )
            return {
                "records": day.seq + 1,
                "reports": day.reports,
                "decisions": day.decisions,
                "bytes": log.size(),
                "grown": log.size() - middle,
                "grown_s": hours * 1800.0,
                "peak": peak,
                "packs": int(packs),
                "packed": int(packed) + 1,
                "unpacked": int(tail),
                "snapshots": len(log.snapshot_seqs()),
                "compact_cpu_s": compact_cpu_s,
                "compared": compared,
                "wrong": wrong,
            }


def _compare(log: SqlLog, day: Day, most: int) -> tuple[int, int]:
    """Folds to random retained moments from the snapshot before each, and compares with the state as it was."""
    marks = [seq for seq in sorted(day.marks) if seq <= log.packed_until()]
    wrong = 0
    chosen = sorted(day.rng.sample(marks, min(most, len(marks))))
    for seq in chosen:
        found = log.newest_snapshot(before=seq + 1)
        state = SchedulerState() if found is None else saved_state.load(found[1])
        for record in log.read(state.seq):
            if record.seq > seq:
                break
            state.apply(record)
        wrong += _digest(state) != day.marks[seq] or state.seq != seq
    return len(chosen), wrong


def run() -> bool:
    """Prints target beside figure; returns whether every target is met."""
    jobs, hours = either((20, 4.5), (JOBS, HOURS))
    sources = source_hash(_SOURCES, setting=["trust_store.py"])
    found = cell("trust-store", {"jobs": jobs, "hours": hours}, sources, partial(run_day, jobs, hours))
    per_day = found["grown"] * _DAY_S / found["grown_s"]
    rows = [
        ("reports, decisions and actions", f"{found['reports']:,}, {found['decisions']:,}", "", True),
        (
            f"the file after {hours:g} h, MB",
            f"{found['bytes'] / 1e6:.1f}",
            "<= 100",
            found["bytes"] <= MOST_BYTES,
        ),
        ("growth over its second half, MB a day", f"{per_day / 1e6:.1f}", "<= 100", per_day <= MOST_BYTES),
        ("largest before a compaction, MB", f"{found['peak'] / 1e6:.1f}", "", True),
        ("packs, MB", f"{found['packs'] / 1e6:.1f}", "", True),
        ("records not packed yet", f"{found['unpacked']:,}", "", True),
        ("CPU of compaction, s a day", f"{found['compact_cpu_s'] * _DAY_S / (hours * 3600):.0f}", "", True),
        (
            "retained moments compared, wrong",
            f"{found['compared']}, {found['wrong']}",
            "= 0",
            not found["wrong"] and found["compared"] > 0,
        ),
    ]
    for what, figure, target, met in rows:
        print(f"{'ok  ' if met else 'FAIL'}  {what:42} {figure:>20}  {target}")
    return all(met for *_, met in rows)

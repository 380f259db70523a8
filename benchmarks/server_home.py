"""A home as it is after a long life: 500 jobs run, 10,000 wait, and as many records as wanted stand in the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from coadapt.live.serve_process import ensure_token
from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    Batch,
    Configuration,
    ControllerStarted,
    JobSpec,
    JobStarted,
    JobSubmitted,
    Measured,
    Measurement,
    NodeJoined,
    Record,
    StartJob,
    Woke,
)
from coadapt.model.job_spec import Role
from coadapt.model.resources import parse_cluster
from coadapt.runtime.controller import scheduler_of
from coadapt.scheduler import Scheduler
from coadapt.scheduler.state import saved_state
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

CLUSTER, RUNNING, WAITING = "125x4:t4", 500, 10_000
_BEGAN = 1.79e9
_CHUNK = 5000


def spec_of(number: int) -> JobSpec:
    """As users write them: a model, limits of the batch size, a deadline here and there."""
    return JobSpec(
        name=f"train-{number % 50}",
        user=f"user-{number % 20}",
        roles=(Role(min=1, max=1),),
        batch=Batch(initial=128, max=2048, per_gpu_min=32, per_gpu_max=256),
        requested_batch=128,
        epochs=90.0,
        data_size=50_000,
        deadline_s=86400.0 if number % 7 == 0 else None,
        command=("python", "train.py", "--model", "resnet18", "--lr", "0.1"),
        envs={"DATA": "data/cifar10"},
    )


def measured(job: str, attempt: int, count: int) -> Measured:
    """What an agent has to say after 30 s."""
    return Measured(
        job=job,
        attempt=attempt,
        measurement=Measurement(
            config=Configuration(nodes=1, replicas=1, atomic_batch=128, gpu_type="t4"),
            count=100,
            step_s=0.25 + 0.001 * (count % 7),
            step_var=1e-4,
            grad_sqr=0.5,
            grad_var=2.0 + 0.01 * (count % 11),
            work=12_800.0 * count,
            epoch=0.25 * count,
            metrics={"loss": 2.0 / (1 + count)},
        ),
    )


def build(path: Path, *, events: int = 0, port: int = 0) -> Home:
    """The home; with ``events``, a log of so many records whose newest snapshot is 10,000 old."""
    home = Home(path)
    home.make()
    # all clients share one token here, and where CPU is measured they ask without a pause
    options = ServeOptions(
        listen=f"127.0.0.1:{port}", virtual=CLUSTER, policy="fifo", requests_per_s=1e5, burst=100_000
    )
    home.write_options(options)
    scheduler = scheduler_of(options)
    with closing(open_store(home.store(options), synchronous="OFF").log()) as log:
        chunk: list[Record] = []
        for record in _records(scheduler, events):
            chunk.append(record)
            if len(chunk) >= _CHUNK or record.seq == events - 10_000 - 1:
                log.append(chunk)
                chunk = []
            if record.seq == events - 10_000 - 1:
                log.save_snapshot(record.seq, saved_state.save(scheduler.state))
        log.append(chunk)
        if not events:
            log.save_snapshot(log.last(), saved_state.save(scheduler.state))
    ensure_token(home, options)
    return home


def _records(scheduler: Scheduler, events: int) -> Iterator[Record]:
    nodes = [NodeJoined(node=node) for node in parse_cluster(CLUSTER).nodes]
    facts: list[AnyEvent] = [ControllerStarted(version="0", policy="FifoPolicy"), *nodes]
    facts += [JobSubmitted(job=f"train-{n % 50}-{n}", spec=spec_of(n)) for n in range(RUNNING)]
    facts.append(Woke())
    seq, at = -1, _BEGAN
    while facts:
        fact = facts.pop(0)
        seq, at = seq + 1, at + 0.01
        first = Record(seq=seq, at=at, event=fact)
        yield first
        for event in scheduler.handle(first):
            seq += 1
            yield Record(seq=seq, at=at, event=event)
            if isinstance(event, ActionsIssued):
                facts += [
                    JobStarted(job=a.job, attempt=a.attempt) for a in event.actions if isinstance(a, StartJob)
                ]
    for number in range(RUNNING, RUNNING + WAITING):
        seq, at = seq + 1, at + 0.01
        record = Record(
            seq=seq, at=at, event=JobSubmitted(job=f"train-{number % 50}-{number}", spec=spec_of(number))
        )
        scheduler.state.apply(record)
        yield record
    count = 0
    while seq + 1 < events:
        number = (seq + 1) % RUNNING
        count += number == 0
        seq, at = seq + 1, at + 0.05
        record = Record(seq=seq, at=at, event=measured(f"train-{number % 50}-{number}", 1, 1 + count))
        scheduler.state.apply(record)
        yield record

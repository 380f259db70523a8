"""``python -m tests.golden.make``: writes the files of the present schema version, once.

Files that exist are what some cluster may have on its disk: they are never written again. A later schema gets a directory of
its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from coadapt.model import (
    SERVER,
    CancelRequested,
    Configuration,
    ControllerStarted,
    Measured,
    Measurement,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    PauseRequested,
    PoolLoaded,
    QuotaSet,
    Record,
    Resources,
    ResumeRequested,
    RetryRequested,
    Role,
    SpecChanged,
    encode,
)
from coadapt.model._base import SCHEMA_VERSION
from coadapt.policies import CoadaptPolicy
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state.saved_state import save
from coadapt.testing import EVERY_EVENT
from tests.builders import a_cluster, a_job, a_trained_job
from tests.properties.world import Crash, Hang, Happening, Snatch, World, live

HERE = Path(__file__).parent


def world() -> World:
    """Jobs of every kind, and everything that can happen to them."""
    cluster = a_cluster("3x4", cpus=16.0, memory_bytes=64e9)
    served = msgspec.structs.replace(
        a_trained_job(2, at_most=3, user="bob", retries=2),
        roles=(
            Role(min=1, max=3, demand=Resources(gpus=1, cpus=1.0)),
            Role(name=SERVER, min=1, max=2, demand=Resources(gpus=0, cpus=1.0)),
        ),
        sync="ps",
        profile="",
        duration_s=300.0,
    )
    submissions = [
        (0.0, "rigid", a_job(2, duration_s=90.0, cpus=2.0, user="ann", retries=2)),
        (0.0, "grows", a_trained_job(1, at_most=6, user="ann", epochs=4.0, deadline_s=900.0)),
        (5.0, "served", served),
        (10.0, "firm", a_job(3, duration_s=150.0, preemptible=False, user="bob", time_limit_s=100.0)),
        (15.0, "after", a_job(1, duration_s=40.0, after=("rigid",), team="vision")),
        (20.0, "again", a_trained_job(2, at_most=4, user="ann", retries=1)),
        (25.0, "urgent", a_job(4, duration_s=60.0, priority=2, user="bob")),
        (30.0, "cancelled", a_job(1, duration_s=500.0)),
        (35.0, "paused", a_trained_job(1, at_most=2, user="cyd")),
        (40.0, "late", a_trained_job(1, at_most=8, user="cyd", epochs=3.0, target="val_acc>=0.9")),
    ]
    report = Measurement(
        config=Configuration(nodes=1, replicas=2, atomic_batch=16, servers=1),
        count=20,
        step_s=0.75,
        work=640.0,
    )
    happenings: list[tuple[float, Happening]] = [
        (1.0, PoolLoaded(pool={"jobs": [{"name": "grows", "total_work": 12_000.0, "finished_at": -5.0}]})),
        (30.0, Measured(job="served", attempt=1, measurement=report)),
        (18.0, Crash("rigid")),
        (50.0, QuotaSet(group="cyd", gpus=3)),
        (55.0, NodeLost(node="n1")),
        (60.0, PauseRequested(job="paused")),
        (65.0, CancelRequested(job="cancelled")),
        (70.0, NodeDrained(node="n2")),
        (80.0, NodeJoined(node=cluster.nodes[1])),
        (90.0, Hang("again")),
        (95.0, Snatch("grows")),
        (100.0, NodeOpened(node="n2")),
        (105.0, ControllerStarted(version="0.1.0", policy="coadapt", options={"change_s": 1.0}, seed=7)),
        (110.0, SpecChanged(job="late", spec=msgspec.structs.replace(submissions[9][2], priority=3))),
        (150.0, RetryRequested(job="cancelled")),
        (400.0, ResumeRequested(job="paused")),
        (420.0, QuotaSet(group="cyd")),
        (450.0, Hang("cancelled")),
    ]
    return World(
        cluster=cluster, submissions=tuple(submissions), happenings=tuple(happenings), stop_s=4.0, seed=7
    )


def middle(records: list[Record]) -> int:
    """How many records lead to the state whose jobs are in most phases; of several, the latest."""
    state, best, found = SchedulerState(), 0, 0
    for number, record in enumerate(records, start=1):
        state.apply(record)
        phases = len({job.phase for job in state.jobs.values()})
        if phases >= best:
            best, found = phases, number
    return found


def main() -> None:
    directory = HERE / f"schema-{SCHEMA_VERSION}"
    if directory.exists() and any(directory.iterdir()):
        sys.exit(f"{directory} exists; what was written once is not written again")
    directory.mkdir(exist_ok=True)
    records, _ = live(world(), CoadaptPolicy(change_s=1.0, least_wait_s=30.0, every_s=30.0))
    (directory / "log.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in records))
    for count in (middle(records), len(records)):
        state = SchedulerState()
        for record in records[:count]:
            state.apply(record)
        (directory / f"state-{count}.bin").write_bytes(save(state))
    every = [Record(seq=seq, at=0.5 * seq, event=event) for seq, event in enumerate(EVERY_EVENT)]
    (directory / "events.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in every))


if __name__ == "__main__":
    main()

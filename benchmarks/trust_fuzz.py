"""Fuzz: reports with every field at its bounds, through both readers, into a running scheduler with the default policy.

A report is JSON. One half goes through the decoder and validator of the API, the other half through the reader of
standard output. Accepted measurements enter a scheduler as ``coadapt serve`` makes it, whose actions are confirmed at
once; every few reports it decides. At the end of a round the state is saved and loaded, the log is encoded, decoded and
folded again, and a second scheduler replays the facts and must make the same decisions.
"""

from __future__ import annotations

import json
import logging
import math
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from benchmarks.cells import cell, source_hash
from benchmarks.smoke import either
from coadapt.errors import InputError
from coadapt.executors.node.stdout_reports import Readings
from coadapt.model import (
    DECISIONS,
    ActionsIssued,
    AnyEvent,
    Batch,
    ControllerStarted,
    DecisionMade,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Measurement,
    NodeJoined,
    Record,
    ReplicasReleased,
    ResizeJob,
    Resources,
    RetryRequested,
    Role,
    StartJob,
    Woke,
    decode,
    encode,
    parse_cluster,
)
from coadapt.model.measurement import PREFIX, ReportLimits
from coadapt.runtime.controller import scheduler_of
from coadapt.scheduler import Scheduler, SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.server.http.problems import Refused
from coadapt.server.http.routing import decode_body
from coadapt.wire.agent import Report, check_report
from coadapt.wire.node_messages import Launch
from coadapt.wire.serve_options import ServeOptions

CLUSTER = "4x4"
MOST_DECISION_S = 2.0
#: Seconds after which a step counts as hung, and reports between two decisions.
_HUNG_S, _REPORTS_PER_DECISION = 60, 10
_SOURCES = (
    "model/*.py",
    "wire/*.py",
    "scheduler/**/*.py",
    "policies/**/*.py",
    "configure/*.py",
    "prediction/**/*.py",
    "executors/node/stdout_reports.py",
)

#: Values at and beyond every bound, as JSON.
_FLOATS = [
    *(
        "0",
        "-0.0",
        "5e-324",
        "1e-300",
        "1e-50",
        "9.99e-7",
        "1e-6",
        "1.0001e-6",
        "0.001",
        "1",
        "1e7",
        "10000001",
    ),
    *("1e-15", "9.9e-16", "1e15", "1.0001e15", "1e30", "1e-30", "1e150", "1e300", "1.7976931348623157e308"),
    *("1e400", "-1", "-1e-9", "NaN", "Infinity", "-Infinity", "null", '"1"', "true", "9007199254740992"),
]
_COUNTS = [
    *("0", "1", "2", "15", "16", "17", "128", "1000", "65536", "2147483647", "2147483648", "2147483649"),
    *("67108864", "94906265", "94906266", "9007199254740991", "9007199254740992", "9223372036854775807"),
    *("18446744073709551616", "-1", "1.5", "1e3", "null", '"7"', "NaN", "1" + "0" * 400),
]


class HungError(Exception):
    """A step of the scheduler took too long."""


def specs() -> dict[str, JobSpec]:
    """Jobs of every kind that a user can submit: elastic, fixed batch, rigid, with servers, with a target."""
    batch = Batch(initial=128, max=4096, per_gpu_min=8, per_gpu_max=256)

    def role(least: int, most: int) -> Role:
        return Role(min=least, max=most, demand=Resources(gpus=1))

    elastic = JobSpec(
        name="elastic",
        roles=(role(1, 16),),
        requested=2,
        requested_batch=128,
        batch=batch,
        epochs=30.0,
        data_size=50_000,
    )
    found: dict[str, JobSpec] = {}
    for number in range(4):
        found[f"elastic-{number}"] = elastic
    found["endless-1"] = _with(elastic, epochs=None, data_size=None)
    found["target-1"] = _with(elastic, target="accuracy >= 0.9")
    found["deadline-1"] = _with(elastic, deadline_s=7200.0)
    fixed = Batch(initial=128, max=4096, per_gpu_min=8, per_gpu_max=256, mode="fixed")
    found["fixed-1"] = _with(elastic, batch=fixed)
    found["rigid-1"] = JobSpec(name="rigid", roles=(role(2, 2),), requested=2, duration_s=5000.0)
    found["rigid-2"] = JobSpec(name="rigid", roles=(role(1, 1),), requested=1)
    found["servers-1"] = _with(elastic, sync="ps", roles=(role(2, 2), Role(name="server", min=1, max=1)))
    return found


def _with(spec: JobSpec, **fields: Any) -> JobSpec:
    return msgspec.structs.replace(spec, **fields)


def report_text(rng: random.Random, attempt: int, work: float) -> str:
    """One report as JSON text: mostly plausible, with up to four fields at or beyond a bound."""
    replicas = rng.choice((1, 2, 4, 8, 16))
    config = {
        "nodes": str(max(replicas // 4, 1)),
        "replicas": str(replicas),
        "atomic_batch": str(rng.choice((8, 32, 64, 128, 256))),
        "accumulation": str(rng.choice((0, 0, 0, 1, 3))),
        "servers": "0",
        "gpu_type": '"gpu"',
    }
    step_s = rng.uniform(0.05, 2.0)
    main = {
        "count": str(rng.randint(1, 100)),
        "step_s": repr(step_s),
        "sync_s": repr(step_s * rng.random() / 2),
        "step_var": repr(step_s**2 / 100),
        "sync_var": "0",
        "grad_sqr": repr(rng.lognormvariate(0, 2)),
        "grad_var": repr(rng.lognormvariate(2, 2)),
        "work": repr(work),
        "epoch": repr(rng.uniform(0, 30)),
        "share": repr(rng.random()),
    }
    for _ in range(rng.choice((0, 0, 0, 1, 1, 1, 2, 4))):
        part = rng.choice((config, main, main, main))
        name = rng.choice(sorted(part))
        whole = part is config or name == "count"
        part[name] = rng.choice(_COUNTS if whole and name != "gpu_type" else _FLOATS)
    if rng.random() < 0.1:  # ratios and products at their limits
        main["grad_sqr"], main["grad_var"] = rng.sample(["1e-15", "1e15", "0", "1"], 2)
    if rng.random() < 0.1:
        config["replicas"], config["nodes"] = "1", "1"
        config["atomic_batch"], config["accumulation"] = rng.sample(
            ["2147483648", "4194303", "2147483647"], 2
        )
    metrics = {"accuracy": rng.choice((repr(rng.random()), *_FLOATS))} if rng.random() < 0.5 else {}
    overheads = {"setup": rng.choice(("1.5", *_FLOATS))} if rng.random() < 0.2 else {}
    fields = {
        **main,
        "config": _object(config),
        "metrics": _object(metrics),
        "overheads_s": _object(overheads),
    }
    return _object({"attempt": str(attempt), "measurements": f"[{_object(fields)}]"})


def _object(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields.items()) + "}"


class Harness:
    """The scheduler as it is served, with its log; actions are confirmed at once."""

    def __init__(self) -> None:
        self.scheduler: Scheduler = scheduler_of(ServeOptions(min_interval_s=0.0))
        self.records: list[Record] = []
        self.worst_s = 0.0
        self.now = 0.0

    def take(self, event: AnyEvent) -> None:
        """Handles one fact, and confirms what follows from it."""
        waiting = [event]
        for one in waiting:  # grows on the way
            record = Record(seq=len(self.records), at=self.now, event=one)
            began = time.process_time()
            with _alarm():
                answer = self.scheduler.handle(record)
            self.worst_s = max(self.worst_s, time.process_time() - began)
            self.records.append(record)
            for decided in answer:
                self.records.append(Record(seq=len(self.records), at=self.now, event=decided))
                if isinstance(decided, ActionsIssued):
                    waiting += confirmed(decided)


def confirmed(issued: ActionsIssued) -> Iterator[AnyEvent]:
    for action in issued.actions:
        if isinstance(action, StartJob):
            yield JobStarted(job=action.job, attempt=action.attempt)
        elif isinstance(action, ResizeJob):
            job, attempt, placement = action.job, action.attempt, action.placement
            yield ReplicasReleased(job=job, attempt=attempt, placement=placement)
            yield JobResized(job=job, attempt=attempt, placement=placement)
        else:
            yield JobStopped(job=action.job, attempt=action.attempt, cause="paused")


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise HungError(f"no answer within {_HUNG_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_HUNG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def by_api(text: str, limits: ReportLimits) -> list[Measurement]:
    """The measurements of a report that the API accepts."""
    try:
        report = decode_body(text.encode(), Report, lenient=True)
        check_report(report, limits)
    except (Refused, InputError):
        return []
    return list(report.measurements)


def _unchecked(text: str) -> list[Measurement]:
    try:
        return list(decode_body(text.encode(), Report, lenient=True).measurements)
    except Refused:
        return []


def run_round(seed: int, reports: int) -> dict[str, Any]:
    """One round; a hang or an exception is counted, with its text."""
    rng, harness = random.Random(seed), Harness()
    counts = {"sent": 0, "api": 0, "stdout": 0, "old": 0, "quarantined": 0, "hangs": 0, "crashes": 0}
    faults: list[str] = []
    jobs = specs()
    try:
        harness.take(ControllerStarted(version="fuzz"))
        for node in parse_cluster(CLUSTER).nodes:
            harness.take(NodeJoined(node=node))
        for name, spec in jobs.items():
            harness.take(JobSubmitted(job=name, spec=spec))
        harness.take(Woke())
        _send(rng, harness, jobs, reports, counts)
    except HungError as error:
        counts["hangs"] += 1
        faults.append(str(error))
    except Exception as error:
        counts["crashes"] += 1
        faults.append(f"{type(error).__name__}: {error}"[:300])
    counts["quarantined"] = sum(
        len(record.event.quarantined) for record in harness.records if isinstance(record.event, DecisionMade)
    )
    faults += _faults_after(harness, counts["api"] + counts["stdout"] + counts["old"])
    return {**counts, "worst_s": harness.worst_s, "faults": faults, "records": len(harness.records)}


def _send(
    rng: random.Random, harness: Harness, jobs: dict[str, JobSpec], reports: int, counts: dict[str, int]
) -> None:
    names, readings = (
        list(jobs),
        {
            name: Readings(Launch(command=("x",), job=name, data_size=spec.data_size))
            for name, spec in jobs.items()
        },
    )
    for number in range(reports):
        name = rng.choice(names)
        job = harness.scheduler.state.jobs[name]
        if job.quarantine is not None and rng.random() < 0.1:
            harness.take(RetryRequested(job=name))
        harness.now += rng.choice((0.0, 1.0, 10.0))
        text = report_text(rng, job.attempt, work=min(10.0 * number, 1e6))
        counts["sent"] += 1
        if number % 2:
            found = by_api(text, ReportLimits(data_size=job.spec.data_size, gpus=16))
            counts["api"] += len(found)
        else:
            found = readings[name].read([f"{PREFIX}{text}"], job.held, 2.0 * number)
            counts["stdout"] += len(found)
        if not found and rng.random() < 0.2:
            # as if a coadapt without these bounds had written it
            found = _unchecked(text)
            counts["old"] += len(found)
        for measurement in found:
            harness.take(Measured(job=name, attempt=job.attempt, measurement=measurement))
        if number % _REPORTS_PER_DECISION == 0:
            harness.scheduler.state.undecided = True
            harness.take(Woke())


def _faults_after(harness: Harness, accepted: int) -> list[str]:
    """What a restart would meet: the snapshot, the log, the fold and the replay."""
    faults: list[str] = []
    try:
        saved = _saved(harness.scheduler.state)
        if saved_state.save(saved_state.load(saved)) != saved:
            faults.append("the snapshot is loaded as another state")
        log = [decode(encode(record)) for record in harness.records]
        if sum(isinstance(record.event, Measured) for record in log) != accepted:
            faults.append("accepted reports are missing from the log")
        state = SchedulerState()
        for record in log:
            state.apply(record)
        state.undecided = harness.scheduler.state.undecided
        if _saved(state) != saved:
            faults.append("the log is folded to another state")
        if _replayed(log) != [record.event for record in log if isinstance(record.event, DECISIONS)]:
            faults.append("a replay decides otherwise")
    except Exception as error:
        faults.append(f"after the restart: {type(error).__name__}: {error}"[:300])
    return faults


def _saved(state: SchedulerState) -> bytes:
    """The state as a restart reads it: whole numbers of reasons become floats there."""
    return saved_state.save(saved_state.load(saved_state.save(state)))


def _replayed(log: list[Record]) -> list[AnyEvent]:
    scheduler = scheduler_of(ServeOptions(min_interval_s=0.0))
    decided: list[AnyEvent] = []
    for record in log:
        if not isinstance(record.event, DECISIONS):
            if isinstance(record.event, Woke):
                scheduler.state.undecided = True
            decided += scheduler.handle(record)
    return decided


def run() -> bool:
    """Prints target beside figure; returns whether every target is met."""
    # what is refused would be logged once per job
    for name in ("coadapt.executors", "coadapt.scheduler"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    rounds, reports = either((1, 300), (20, 5000))
    sources = source_hash(_SOURCES, setting=["trust_fuzz.py"])
    found = [
        cell("trust-fuzz", {"seed": seed, "reports": reports}, sources, partial(run_round, seed, reports))
        for seed in range(rounds)
    ]
    total = {
        name: sum(each[name] for each in found)
        for name in ("sent", "api", "stdout", "old", "quarantined", "hangs", "crashes")
    }
    worst_s = max((each["worst_s"] for each in found), default=math.nan)
    faults = [fault for each in found for fault in each["faults"]]
    goal = rounds * reports
    rows = [
        ("reports sent", f"{total['sent']:,}", f"= {goal:,}", total["sent"] == goal),
        ("accepted by the API, by standard output", f"{total['api']:,}, {total['stdout']:,}", "", True),
        ("refused now, folded as from an old log", f"{total['old']:,}", "", True),
        ("hangs", str(total["hangs"]), "= 0", not total["hangs"]),
        ("crashes", str(total["crashes"]), "= 0", not total["crashes"]),
        ("longest decision, CPU s", f"{worst_s:.3f}", f"<= {MOST_DECISION_S:g}", worst_s <= MOST_DECISION_S),
        ("faults after save, restore and replay", str(len(faults)), "= 0", not faults),
        ("jobs quarantined", str(total["quarantined"]), "", True),
    ]
    for what, figure, target, met in rows:
        print(f"{'ok  ' if met else 'FAIL'}  {what:42} {figure:>18}  {target}")
    for fault in faults[:10]:
        print(f"      {fault}")
    return all(met for *_, met in rows)

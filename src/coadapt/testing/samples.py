"""One event of every type, with fields that are hard to store: no-break spaces, quotes, large and small numbers."""

from __future__ import annotations

from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    Batch,
    CancelRequested,
    Configuration,
    ControllerStarted,
    DecisionMade,
    JobFinished,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Measurement,
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Placement,
    PoolLoaded,
    Reason,
    ReplicasReleased,
    ResizeJob,
    Resources,
    Role,
    Slot,
    SpecChanged,
    StartJob,
    StopJob,
    Woke,
)

_JOB = "größe/π \"quoted\" 'job'\n\u00a0"
_HERE = Placement(slots=(Slot(node="n0", replicas=2), Slot(node="n1", replicas=1, role="server", share=0.5)))
_THERE = Placement(slots=(Slot(node="n2", replicas=4, gpu_type="a100"),))
_SPEC = JobSpec(
    name="sample",
    roles=(Role(max=8, demand=Resources(gpus=2, cpus=1.5, memory_bytes=2.0**33, extras={"licence": 1.0})),),
    batch=Batch(initial=128, max=4096, per_gpu_min=16, per_gpu_max=256),
    after=("earlier",),
    command=("python", "-c", "print('a b')"),
    envs={"KEY": "value with = and \\"},
)
_MEASUREMENT = Measurement(
    config=Configuration(nodes=2, replicas=3, atomic_batch=64, accumulation=1, gpu_type="t4"),
    count=17,
    step_s=0.1 + 0.2,
    step_var=5e-324,
    sync_s=1e-9,
    grad_sqr=1.7976931348623157e308,
    grad_var=0.0,
    work=1e15 + 0.5,
    metrics={"val_acc": 0.93},
)

#: Every type of event at least once.
EVERY_EVENT: tuple[AnyEvent, ...] = (
    PoolLoaded(pool={"jobs": [{"name": "bert-1", "total_work": 1e6}]}),
    ControllerStarted(version="0.1", policy="fifo", options={"nested": {"list": [1, 2.5, None]}}, seed=2**40),
    NodeJoined(node=Node(name="n0", gpus=8, gpu_type="a100", cpus=64.0, extras={"licence": 2.0})),
    NodeLost(node="n0"),
    NodeDrained(node="n0"),
    JobSubmitted(job=_JOB, spec=_SPEC),
    CancelRequested(job=_JOB),
    SpecChanged(job=_JOB, spec=_SPEC),
    JobStarted(job=_JOB, attempt=1),
    ReplicasReleased(job=_JOB, attempt=1, placement=_HERE),
    JobResized(job=_JOB, attempt=1, placement=_THERE),
    JobStopped(job=_JOB, attempt=2, cause="node-lost"),
    JobFinished(job=_JOB, attempt=3, outcome="failed", exit_code=137, reason="replica 0 was killed"),
    Measured(job=_JOB, attempt=3, measurement=_MEASUREMENT),
    Woke(),
    DecisionMade(
        decision=1,
        targets={_JOB: _HERE, "other": Placement()},
        reasons={_JOB: Reason(code="grow", text="because", numbers={"speedup": 1.5})},
        memory={"queue": [1, "two", None], "gone": None},
        wake_at=60.0,
        price={"a100": 0.25},
    ),
    ActionsIssued(
        decision=1,
        actions=(
            StartJob(id=1, job=_JOB, attempt=1, placement=_HERE),
            ResizeJob(id=2, job=_JOB, attempt=1, before=_HERE, placement=_THERE),
            StopJob(id=3, job=_JOB, attempt=1, why="drain"),
        ),
    ),
)

"""A job on whose figures a policy or predictor fails is left out; everybody else goes on."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from coadapt.explain.explanation import short, why
from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    AnyEvent,
    Configuration,
    DecisionMade,
    JobQuarantined,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Measurement,
    NodeJoined,
    Record,
    RetryRequested,
    StartJob,
    StopJob,
    Woke,
    decode,
    encode,
)
from coadapt.model.snapshot import Phase, Snapshot
from coadapt.plugins import PLACERS, make_policy
from coadapt.policies import Curves, Memory, Policy, Proposal, Rng
from coadapt.policies.coadapt.fluid_forecast import ends_s
from coadapt.policies.fifo import FifoPolicy
from coadapt.scheduler import FittedCurves, Scheduler, SchedulerState
from coadapt.scheduler.quarantine import MOST_JOBS, shortest_failing
from coadapt.scheduler.state import saved_state
from tests.builders import a_cluster, a_job, a_trained_job
from tests.unit.scheduler.phases import job_in


class Picky(FifoPolicy):
    """First come, first served; raises if it sees one of ``poison``."""

    def __init__(self, *poison: str) -> None:
        super().__init__()
        self.poison = poison

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        for job in snapshot:
            if job.id in self.poison:
                raise OverflowError(f"cannot convert {object()!r}")
        return super().decide(snapshot, curves, memory, rng)


class World:
    """A scheduler whose actions are confirmed at once; its log."""

    def __init__(self, policy: Policy, *, quarantine: bool = True, shape: str = "1x4") -> None:
        self.scheduler = Scheduler(
            policy, PLACERS.load(policy.placer)(), curves=FittedCurves(), quarantine=quarantine
        )
        self.log: list[Record] = []
        self.take(*(NodeJoined(node=node) for node in a_cluster(shape).nodes))

    @property
    def state(self) -> SchedulerState:
        return self.scheduler.state

    def take(self, *events: AnyEvent) -> World:
        waiting = list(events)
        for event in waiting:
            record = Record(seq=len(self.log), at=self.state.now, event=event)
            self.log.append(record)
            for decided in self.scheduler.handle(record):
                self.log.append(Record(seq=len(self.log), at=self.state.now, event=decided))
                if isinstance(decided, ActionsIssued):
                    for action in decided.actions:
                        if isinstance(action, StartJob):
                            waiting.append(JobStarted(job=action.job, attempt=action.attempt))
                        elif isinstance(action, StopJob):
                            waiting.append(JobStopped(job=action.job, attempt=action.attempt, cause="paused"))
            self.state.validate()
        return self

    def decide(self) -> World:
        self.state.undecided = True
        return self.take(Woke())


def submitted(count: int) -> list[AnyEvent]:
    return [JobSubmitted(job=f"j{n}", spec=a_job(1)) for n in range(count)]


@pytest.mark.parametrize("poison", [("j0",), ("j3",), ("j6",), ("j1", "j2", "j5")])
def test_jobs_that_make_the_policy_raise_are_left_out_and_the_others_run(poison: tuple[str, ...]) -> None:
    world = World(Picky(*poison), shape="2x4").take(*submitted(7)).decide()
    state = world.state
    assert {job.id for job in state.jobs.values() if job.quarantine} == set(poison)
    assert {job.id for job in state.jobs.values() if job.phase is Phase.RUNNING} == set(state.jobs) - set(
        poison
    )
    (decision,) = [r.event for r in world.log if isinstance(r.event, DecisionMade) and r.event.quarantined]
    assert "Picky cannot decide with it (OverflowError: cannot convert" in decision.quarantined[poison[0]]
    assert " at 0x>" in decision.quarantined[poison[0]]  # no address: a replay says the same


def test_running_job_in_quarantine_is_stopped_and_its_gpus_go_to_others() -> None:
    policy = Picky()
    world = World(policy).take(JobSubmitted(job="j0", spec=a_job(4)), JobSubmitted(job="j1", spec=a_job(4)))
    world.decide()
    assert world.state.jobs["j0"].phase is Phase.RUNNING
    policy.poison = ("j0",)
    world.decide().decide()
    assert (world.state.jobs["j0"].phase, world.state.jobs["j0"].target) == (Phase.PAUSED, NOWHERE)
    assert world.state.jobs["j1"].phase is Phase.RUNNING


def test_policy_that_exits_ends_no_controller() -> None:
    class Exiting(Picky):
        def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
            try:
                return super().decide(snapshot, curves, memory, rng)
            except OverflowError:
                raise SystemExit(7) from None

    world = World(Exiting("j0")).take(*submitted(2)).decide()
    assert world.state.jobs["j0"].quarantine is not None
    assert world.state.jobs["j1"].phase is Phase.RUNNING


def test_why_and_ps_say_that_a_job_is_quarantined_and_how_it_is_released() -> None:
    world = World(Picky("j0")).take(*submitted(2)).decide()
    said = why(world.state, "j0")
    assert (said.code, said.state) == ("quarantine", "QUARANTINED")
    assert "Left out of decisions, so that other jobs continue: Picky cannot decide with it" in said.sentence
    assert "coadapt retry j0" in said.next
    assert short(world.state, world.state.jobs["j0"], 0.0).startswith("Left out of decisions")


def test_retry_releases_a_job_and_forgets_its_measurements() -> None:
    policy = Picky()
    world = World(policy).take(JobSubmitted(job="j0", spec=a_trained_job())).decide()
    measurement = Measurement(
        config=Configuration(nodes=1, replicas=1, atomic_batch=32),
        step_s=1.0,
        grad_sqr=1.0,
        grad_var=1.0,
        work=64.0,
    )
    world.take(Measured(job="j0", attempt=1, measurement=measurement))
    assert world.state.jobs["j0"].table.rows
    policy.poison = ("j0",)
    world.decide()
    policy.poison = ()
    world.take(RetryRequested(job="j0"))
    job = world.state.jobs["j0"]
    assert (job.quarantine, job.table.rows, job.grad_sqr, job.work) == (None, (), None, 64.0)
    world.decide()
    assert job.phase is Phase.RUNNING


def test_warm_start_that_fails_is_dropped_and_no_job_is_blamed() -> None:
    class Warm(FifoPolicy):
        def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
            if memory.warm is not None:
                raise KeyError("stale")
            return dataclasses.replace(super().decide(snapshot, curves, memory, rng), warm={"old": 1})

    world = World(Warm()).take(*submitted(2)).decide().decide()
    assert [job.phase for job in world.state.jobs.values()] == [Phase.RUNNING] * 2
    assert not any(job.quarantine for job in world.state.jobs.values())


def test_policy_that_fails_without_any_job_raises_as_before() -> None:
    class Broken(FifoPolicy):
        def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
            raise ZeroDivisionError("always")

    with pytest.raises(ZeroDivisionError, match="always"):
        World(Broken()).take(*submitted(2)).decide()


def test_policy_that_fails_on_every_job_of_many_raises() -> None:
    names = tuple(f"j{n}" for n in range(MOST_JOBS + 1))
    with pytest.raises(OverflowError):
        World(Picky(*names)).take(*submitted(len(names))).decide()


def test_simulation_raises() -> None:
    with pytest.raises(OverflowError):
        World(Picky("j0"), quarantine=False).take(*submitted(1)).decide()


def test_replay_and_snapshot_know_the_quarantine() -> None:
    world = World(Picky("j1")).take(*submitted(3)).decide()
    state = SchedulerState()
    for record in world.log:
        state.apply(decode(encode(record)))
    state.undecided = world.state.undecided
    assert saved_state.save(state) == saved_state.save(world.state)
    again = saved_state.load(saved_state.save(state))
    again.validate()
    assert again.jobs["j1"].quarantine == world.state.jobs["j1"].quarantine is not None
    assert again.jobs["j0"].quarantine is None


@pytest.mark.parametrize(
    "phase", [Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.RESIZING, Phase.STOPPING]
)
def test_quarantine_as_a_fact_in_any_phase(phase: Phase) -> None:
    told = job_in(phase).tell(JobQuarantined(job="a", reason="it hangs"), JobQuarantined(job="x", reason="-"))
    assert told.state.jobs["a"].quarantine == "it hangs"
    assert not told.state.active
    told.tell(RetryRequested(job="a"))
    assert list(told.state.active) == ["a"]


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED])
def test_job_that_has_ended_cannot_be_quarantined(phase: Phase) -> None:
    told = job_in(phase).tell(JobQuarantined(job="a", reason="it hangs"))
    assert told.state.jobs["a"].quarantine is None


def test_shortest_failing_prefix_needs_few_attempts() -> None:
    names, calls = [f"j{n}" for n in range(1000)], []

    def attempt(hidden: Any) -> None:
        calls.append(1)
        if "j777" not in hidden:
            raise ValueError("poison")

    count, error = shortest_failing(names, attempt)
    assert (names[count - 1], str(error)) == ("j777", "poison")
    assert len(calls) <= 12


#: Two reports that a coadapt without bounds accepted, each of which stopped the controller for ever (C1 and C2).
HUGE = Configuration(nodes=1, replicas=1 << 31, atomic_batch=1 << 31, accumulation=1 << 31)
POISON = [
    {"step_s": 1e-300},
    {"step_s": 1e-60},
    {"grad_sqr": 1e30, "grad_var": 1e-300},
    {"grad_sqr": 1e-300, "grad_var": 1e30},
    {"config": HUGE, "grad_sqr": 1.0, "grad_var": 1.0},
]


@pytest.mark.parametrize("wrong", POISON)
def test_log_with_a_poisonous_report_is_folded_decided_and_saved(wrong: dict[str, Any]) -> None:
    world = World(make_policy("coadapt", {}))
    for name in ("liar", "honest"):
        world.take(JobSubmitted(job=name, spec=a_trained_job(at_most=4)))
    world.decide()
    right = Measurement(
        config=Configuration(nodes=1, replicas=1, atomic_batch=32), count=10, step_s=1.0, work=1000.0
    )
    world.take(Measured(job="honest", attempt=1, measurement=right))
    world.take(Measured(job="liar", attempt=1, measurement=msgspec.structs.replace(right, **wrong)))
    world.decide()
    assert world.state.jobs["honest"].held_gpus
    assert saved_state.load(saved_state.save(world.state)).seq == world.state.seq


def test_curve_without_finite_figures_is_dropped_and_the_reason_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(make_policy("coadapt", {}))
    for name in ("liar", "honest"):
        world.take(JobSubmitted(job=name, spec=a_trained_job(at_most=4)))
    real = FittedCurves.curve

    def curve(self: FittedCurves, job: Any, before_fit: Any = None) -> Any:
        found = real(self, job, before_fit)
        if job.id == "liar":
            monkeypatch.setattr(
                found, "goodput", lambda nodes, replicas, gpu_type="gpu": np.full(len(nodes), np.nan)
            )
        return found

    monkeypatch.setattr(FittedCurves, "curve", curve)
    world.decide()
    assert {job.id for job in world.state.jobs.values() if job.phase is Phase.RUNNING} == {"liar", "honest"}
    assert "Its measurements give no finite speed and are not used" in why(world.state, "liar").sentence
    assert "finite" not in why(world.state, "honest").sentence


def test_forecast_ends_when_figures_are_not_numbers() -> None:
    class Offers:
        jobs = ("a", "b")
        unknown = np.array([False, False])
        left_s = np.array([10.0, 20.0])
        capacity = (4,)
        size = np.array([0, 1, 2])
        expected = np.array([[0.0, np.nan, np.nan], [0.0, 1.0, 2.0]])
        least = np.array([1.0, 1.0])

    found = ends_s(Offers(), 0.7)  # type: ignore[arg-type]
    assert found.shape == (2,)


def test_tables_of_a_job_that_reports_ever_new_configurations_do_not_grow_for_ever() -> None:
    world = (
        World(make_policy("coadapt", {})).take(JobSubmitted(job="a", spec=a_trained_job(at_most=4))).decide()
    )
    job = world.state.jobs["a"]
    for number in range(1100):
        config = Configuration(nodes=1, replicas=1, atomic_batch=1 + number, servers=number % 2)
        job.measure(Measurement(config=config, step_s=1.0), 1, 0.0)
        job.measure(Measurement(config=msgspec.structs.replace(config, servers=1), step_s=1.0), 1, 0.0)
    assert len(job.table.rows) <= 1000
    assert len(job.server_table.rows) == 1000

"""When a job counts as hung, and when it does not."""

from __future__ import annotations

from coadapt.model import (
    AnyEvent,
    Configuration,
    JobHung,
    JobResized,
    JobStarted,
    Measured,
    Measurement,
    Record,
)
from coadapt.model.snapshot import Phase
from coadapt.runtime.controller import Watchdog
from tests.unit.scheduler.phases import HERE, job_in


class Watched:
    """A running job "a" in its second attempt, and the watchdog that hears of it."""

    def __init__(self, **options: float) -> None:
        self.state = job_in(Phase.RUNNING).state
        self.dog = Watchdog(**options)
        self.now = 1000.0
        self.hear(JobStarted(job="a", attempt=2))

    def hear(self, event: AnyEvent) -> None:
        self.dog.hear(Record(seq=0, at=self.now, event=event))

    def report(self, *, every_s: float, times: int, step_s: float = 0.1, attempt: int = 2) -> None:
        config = Configuration(nodes=1, replicas=1, atomic_batch=32)
        for _ in range(times):
            self.wait(every_s)
            self.hear(
                Measured(job="a", attempt=attempt, measurement=Measurement(config=config, step_s=step_s))
            )

    def wait(self, seconds: float) -> list[JobHung]:
        """Passes the time, looking every ten seconds as a controller would."""
        found, until = [], self.now + seconds
        while self.now < until:
            self.now = min(self.now + 10.0, until)
            found += self.dog.look(self.state, self.now)
        return found


def test_job_that_falls_silent_hangs_once() -> None:
    watched = Watched()
    watched.report(every_s=20.0, times=5)
    (hung,) = watched.wait(1000.0)
    assert (hung.job, hung.attempt, hung.expected_s) == ("a", 2, 0.1)
    assert 120.0 < hung.silent_s <= 131.0


def test_nothing_is_said_before_the_first_report() -> None:
    assert Watched().wait(10_000.0) == []


def test_job_with_slow_steps_gets_more_time() -> None:
    watched = Watched(factor=20.0)
    watched.report(every_s=60.0, times=5, step_s=30.0)
    assert watched.wait(590.0) == []
    assert len(watched.wait(30.0)) == 1


def test_job_that_reports_seldom_gets_more_time() -> None:
    """One that prints a line per epoch is not hung between two epochs."""
    watched = Watched()
    watched.report(every_s=300.0, times=4)
    assert watched.wait(1490.0) == []
    assert len(watched.wait(30.0)) == 1


def test_start_up_does_not_count_as_the_usual_time_between_reports() -> None:
    watched = Watched()
    watched.wait(1200.0)
    watched.report(every_s=20.0, times=3)
    assert len(watched.wait(200.0)) == 1


def test_resize_begins_anew() -> None:
    watched = Watched()
    watched.report(every_s=20.0, times=3)
    watched.hear(JobResized(job="a", attempt=2, placement=HERE))
    assert watched.wait(5000.0) == []


def test_report_of_an_older_attempt_is_no_sign_of_life() -> None:
    watched = Watched()
    watched.report(every_s=20.0, times=3)
    watched.report(every_s=20.0, times=5, attempt=1)
    assert len(watched.wait(60.0)) == 1


def test_time_in_which_we_were_stopped_ourselves_does_not_count() -> None:
    watched = Watched()
    watched.report(every_s=20.0, times=3)
    watched.now += 3600.0
    assert list(watched.dog.look(watched.state, watched.now)) == []
    assert watched.wait(100.0) == []
    assert len(watched.wait(60.0)) == 1


def test_job_that_runs_no_more_is_forgotten() -> None:
    watched = Watched()
    watched.report(every_s=20.0, times=3)
    watched.state = job_in(Phase.PAUSED).state
    assert watched.wait(1000.0) == []


def test_adopted_job_that_stays_silent_is_found() -> None:
    state = job_in(Phase.RUNNING).state
    job = state.jobs["a"]
    job.measured_at = job.in_flight_since + 1.0
    dog = Watchdog()
    dog.adopt(state, 1000.0)
    found = [hung for now in range(1000, 2000, 10) for hung in dog.look(state, float(now))]
    assert [hung.job for hung in found] == ["a"]
    silent = Watchdog()
    job.measured_at = None
    silent.adopt(state, 1000.0)
    assert [hung for now in range(1000, 9000, 10) for hung in silent.look(state, float(now))] == []

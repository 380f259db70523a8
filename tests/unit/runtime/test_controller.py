"""The controller over a real store and an executor that only remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coadapt.errors import CoadaptError, InputError
from coadapt.executors.node.processes import is_gone, this_process
from coadapt.model import (
    Action,
    AnyEvent,
    Configuration,
    ControllerStarted,
    JobHung,
    JobSpec,
    JobStarted,
    JobSubmitted,
    Measured,
    Measurement,
    NodeJoined,
    StartJob,
    StopJob,
)
from coadapt.model.snapshot import Phase
from coadapt.placement.packed import PackedPlacer
from coadapt.policies.fifo import FifoPolicy
from coadapt.runtime import Cursor, Running, controller
from coadapt.runtime.controller import Controller, Watchdog, read_status
from coadapt.scheduler import Scheduler
from coadapt.scheduler.state import saved_state
from coadapt.store import Store, open_store
from tests.builders import a_cluster, a_job


class Rig:
    """A controller, its clock in our hands, and an executor that starts what it is told to and reports what we say."""

    def __init__(self, path: Path, home: str = "home") -> None:
        # later than the clock with which the controller was made
        self.now, self.applied = 3e9, list[Action]()
        self.events: list[tuple[Cursor, AnyEvent]] = []
        self.acknowledged = 0
        self.store: Store = open_store(path / "store.db", synchronous="OFF")
        self.inbox = self.store.inbox()
        self.controller = Controller(
            self.store.log(),
            self.store.inbox(),
            Scheduler(FifoPolicy(), PackedPlacer()),
            self.connect,
            home=home,
            owner=this_process(),
            is_gone=is_gone,
            saver=saved_state,
            watchdog=Watchdog(),
        )
        self.controller.clock = self.controller.feed.clock = lambda: self.now  # type: ignore[assignment]

    def connect(self, spec_of: Callable[[str], JobSpec]) -> Rig:
        self.spec_of = spec_of
        return self

    # -- the executor ------------------------------------------------------------------------------

    def apply(self, actions: Sequence[Action]) -> None:
        self.applied += actions
        for action in actions:
            if isinstance(action, StartJob):
                assert self.spec_of(action.job).name
                self.say(JobStarted(job=action.job, attempt=action.attempt))

    def inventory(self) -> Sequence[Running]:
        return ()

    def take(self, timeout_s: float) -> Sequence[tuple[Cursor, AnyEvent]]:
        self.now += timeout_s
        events, self.events = self.events, []
        return events

    def acknowledge(self, cursor: Cursor) -> None:
        self.acknowledged = cursor.number

    def close(self) -> None:
        pass

    # -- the test ----------------------------------------------------------------------------------

    def say(self, event: AnyEvent) -> None:
        number = self.acknowledged + len(self.events) + 1
        self.events.append((Cursor(source="rig", number=number), event))

    def start(self) -> Rig:
        self.controller.loop.start(ControllerStarted(version="test"))
        self.say(NodeJoined(node=a_cluster("1x4").nodes[0]))
        return self

    def until(self, condition: Callable[[], bool], steps: int = 1000) -> None:
        for _ in range(steps):
            if condition():
                return
            self.controller.loop.step()
        raise AssertionError("it did not come to pass")

    @property
    def phases(self) -> dict[str, Phase]:
        return {name: job.phase for name, job in self.controller.scheduler.state.jobs.items()}


def test_job_that_hangs_is_a_fact_in_the_log_and_is_stopped(tmp_path: Path) -> None:
    rig = Rig(tmp_path).start()
    rig.inbox.put(JobSubmitted(job="a", spec=a_job()))
    rig.until(lambda: rig.phases.get("a") is Phase.RUNNING)
    config = Configuration(nodes=1, replicas=1, atomic_batch=32)
    for _ in range(3):
        rig.now += 20.0
        rig.say(Measured(job="a", attempt=1, measurement=Measurement(config=config, step_s=0.1, work=1.0)))
        before = rig.controller.scheduler.state.seq
        rig.until(lambda before=before: rig.controller.scheduler.state.seq > before)  # type: ignore[misc]
    for _ in range(16):
        rig.now += 10.0
        rig.inbox.put(JobSubmitted(job=f"tick{rig.now}", spec=a_job(duration_s=1.0)))
        rig.controller.loop.step()
    rig.until(lambda: any(isinstance(action, StopJob) for action in rig.applied))
    (hung,) = [r.event for r in rig.store.log().read() if isinstance(r.event, JobHung)]
    assert (hung.job, hung.attempt) == ("a", 1)
    assert hung.silent_s > 120.0
    (stop,) = [action for action in rig.applied if isinstance(action, StopJob)]
    assert (stop.job, stop.why) == ("a", "hang")


def test_lease_is_renewed_while_nothing_happens(tmp_path: Path) -> None:
    rig = Rig(tmp_path).start()
    rig.until(lambda: bool(rig.controller.scheduler.state.nodes))
    for _ in range(4):
        rig.now += 9.0
        rig.controller.feed.next(rig.now + 0.01)
        with pytest.raises(InputError, match="in use by controller"):
            rig.store.log().acquire("other", 10.0, rig.now)


def test_decisions_are_counted_by_how_long_they_took_and_the_next_controller_goes_on_counting(
    tmp_path: Path,
) -> None:
    for start in (1, 2):
        rig = Rig(tmp_path).start()
        rig.until(lambda rig=rig: bool(rig.controller.scheduler.state.nodes))  # type: ignore[misc]
        rig.inbox.put(JobSubmitted(job=f"job{start}", spec=a_job()))
        rig.until(lambda rig=rig, start=start: rig.phases.get(f"job{start}") is Phase.RUNNING)  # type: ignore[misc]
        rig.now += 9.0
        rig.controller.feed.next(rig.now + 0.01)
        status = read_status(rig.store.log().status())
        assert sum(status.decisions) == rig.controller.scheduler.state.decisions >= start
        assert status.decision_s > 0.0
        rig.controller.close(release=True)


def test_status_of_another_version_begins_anew() -> None:
    for text in (None, "", "[]", '{"decisions": [1, 2]}'):
        assert sum(read_status(text).decisions) == 0


def test_controller_that_lost_its_lease_writes_and_does_nothing_more(tmp_path: Path) -> None:
    rig = Rig(tmp_path).start()
    rig.until(lambda: bool(rig.controller.scheduler.state.nodes))
    rig.store.log().acquire("other", 10.0, rig.now + 3600.0)
    before = rig.store.log().last()
    rig.inbox.put(JobSubmitted(job="a", spec=a_job()))
    with pytest.raises(CoadaptError):
        rig.until(lambda: False)
    assert rig.store.log().last() == before
    assert rig.applied == []


def test_second_home_on_one_store_is_refused(tmp_path: Path) -> None:
    Rig(tmp_path).controller.close(release=True)
    with pytest.raises(InputError, match="another home directory"):
        Rig(tmp_path, home="elsewhere")
    Rig(tmp_path)


def test_clock_never_starts_before_the_log_ends(tmp_path: Path) -> None:
    rig = Rig(tmp_path).start()
    rig.now = 4e9  # a clock far in the future, then set right
    rig.until(lambda: bool(rig.controller.scheduler.state.nodes))
    rig.controller.close(release=True)
    again = Controller(
        rig.store.log(),
        rig.store.inbox(),
        Scheduler(FifoPolicy(), PackedPlacer()),
        rig.connect,
        home="home",
        owner=this_process(),
        is_gone=is_gone,
    )
    assert again.clock() >= 4e9


def test_acknowledged_entries_are_cleared_away_now_and_then(tmp_path: Path) -> None:
    rig = Rig(tmp_path).start()
    rig.inbox.put(JobSubmitted(job="a", spec=a_job()))
    rig.until(lambda: "a" in rig.phases)
    rig.until(lambda: not list(rig.inbox.take()))
    rig.now += controller.TIDY_S + 1
    rig.controller.feed.next(rig.now + 0.01)
    assert rig.inbox.prune(-1e9) == 0

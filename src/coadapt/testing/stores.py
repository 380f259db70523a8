"""Conformance suites of event logs, inboxes and logs with a writer's lease.

``EVERY_EVENT`` has one event of every type, with fields that are hard to store: no-break spaces, quotes, large and small numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from unittest import SkipTest

from coadapt.errors import CoadaptError
from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    Batch,
    CancelRequested,
    ClusterRestored,
    CodeFound,
    CodeMissing,
    Configuration,
    ControllerStarted,
    DecisionMade,
    Forecast,
    JobFinished,
    JobHung,
    JobQuarantined,
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
    NodeOpened,
    PauseRequested,
    Placement,
    PoolLoaded,
    QuotaSet,
    Reason,
    Record,
    ReplicasReleased,
    ReportsMerged,
    ResizeJob,
    Resources,
    ResumeRequested,
    RetryRequested,
    Role,
    Slot,
    SpecChanged,
    StartJob,
    StopJob,
    Woke,
    encode,
)
from coadapt.model.lease import Make
from coadapt.runtime import EventLog, Inbox, LeasedLog

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
    NodeOpened(node="n0"),
    QuotaSet(group="größe 'team'", gpus=12),
    QuotaSet(group="ann"),
    JobSubmitted(job=_JOB, spec=_SPEC),
    CancelRequested(job=_JOB),
    PauseRequested(job=_JOB),
    ResumeRequested(job=_JOB),
    RetryRequested(job=_JOB),
    SpecChanged(job=_JOB, spec=_SPEC),
    JobStarted(job=_JOB, attempt=1),
    ReplicasReleased(job=_JOB, attempt=1, placement=_HERE),
    JobResized(job=_JOB, attempt=1, placement=_THERE),
    JobStopped(job=_JOB, attempt=2, cause="node-lost"),
    JobFinished(job=_JOB, attempt=3, outcome="failed", exit_code=137, reason="replica 0 was killed"),
    JobFinished(
        job=_JOB,
        attempt=4,
        outcome="failed",
        kind="oom",
        rank=3,
        tail="Traceback:\n\x1b[31mMemoryError: größe\x1b[0m\n",
    ),
    JobHung(job=_JOB, attempt=3, silent_s=1e4 / 3, expected_s=0.1),
    JobQuarantined(job=_JOB, reason="decisions with it do not end"),
    CodeMissing(job=_JOB),
    CodeFound(job=_JOB),
    ClusterRestored(made_at=1.5e9 + 0.1),
    JobStopped(job=_JOB, attempt=2, cause="shutdown", ended_at=1.5e9 + 0.1),
    Measured(job=_JOB, attempt=3, measurement=_MEASUREMENT),
    ReportsMerged(
        job=_JOB,
        attempt=3,
        count=2,
        measurement=_MEASUREMENT,
        changes={"work": 0.1, "course": [1, [[1.0, 2.0]]]},
    ),
    Woke(),
    DecisionMade(
        decision=1,
        targets={_JOB: _HERE, "other": Placement()},
        reasons={_JOB: Reason(code="grow", text="because", numbers={"speedup": 1.5})},
        memory={"queue": [1, "two", None], "gone": None},
        wake_at=60.0,
        price={"a100": 0.25},
        forecasts={_JOB: Forecast(left_s=3600.5, low_s=1e3, high_s=None, method="pool", done=0.25)},
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


def records(first: int, *events: AnyEvent) -> list[Record]:
    return [Record(seq=first + i, at=float(first + i), event=event) for i, event in enumerate(events)]


class StoreConformance:
    """Conformance suite of an event log: subclass it and implement ``open``."""

    #: False for a log that lives in memory.
    durable = True

    def open(self, directory: Path) -> EventLog:
        """The log in ``directory``: the same one each time it is called with the same directory."""
        raise NotImplementedError

    def close(self, log: EventLog) -> None:
        """Called when a test is done with ``log``; a test may open it again afterwards."""

    def test_empty_log_has_no_last_record(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        assert log.last() == -1
        assert list(log.read()) == []
        self.close(log)

    def test_records_come_back_in_order_and_byte_for_byte(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        written = records(0, *EVERY_EVENT)
        log.append(written)
        assert list(log.read()) == written
        assert [encode(record) for record in log.read()] == [encode(record) for record in written]
        self.close(log)

    def test_last_follows_every_append(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(records(0, Woke()))
        assert log.last() == 0
        log.append(records(1, Woke(), CancelRequested(job="a")))
        assert log.last() == 2
        log.append([])
        assert log.last() == 2
        self.close(log)

    def test_read_gives_only_what_came_after(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(records(0, *[Woke()] * 2500))
        assert [record.seq for record in log.read(after=2497)] == [2498, 2499]
        assert [record.seq for record in log.read()] == list(range(2500))
        assert list(log.read(after=2499)) == []
        self.close(log)

    def test_gap_repetition_and_wrong_beginning_are_refused(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        self._refused(log, 1)
        log.append(records(0, Woke(), Woke()))
        self._refused(log, 3)
        self._refused(log, 1)
        assert log.last() == 1
        assert len(list(log.read())) == 2
        self.close(log)

    def test_records_survive_reopening(self, tmp_path: Path) -> None:
        if not self.durable:
            raise SkipTest("lives in memory")
        log = self.open(tmp_path)
        written = records(0, *EVERY_EVENT)
        log.append(written)
        self.close(log)
        again = self.open(tmp_path)
        assert list(again.read()) == written
        again.append(records(len(written), Woke()))
        assert again.last() == len(written)
        self.close(again)

    def test_snapshots_keep_the_newest_the_one_before_and_the_first(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(records(0, *[Woke()] * 30))
        assert log.newest_snapshot() is None
        for seq in (3, 7, 11, 29):
            log.save_snapshot(seq, bytes(range(256)) + str(seq).encode())
        assert log.newest_snapshot() == (29, bytes(range(256)) + b"29")
        assert log.newest_snapshot(before=29) == (11, bytes(range(256)) + b"11")
        assert log.newest_snapshot(before=11) == (3, bytes(range(256)) + b"3")
        assert log.newest_snapshot(before=3) is None
        log.save_snapshot(29, b"again")
        assert log.newest_snapshot() == (29, b"again")
        self.close(log)

    def test_snapshot_of_what_is_not_in_the_log_is_refused(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(records(0, Woke()))
        refuses(lambda: log.save_snapshot(-1, b"x"))
        refuses(lambda: log.save_snapshot(1, b"x"))
        assert log.newest_snapshot() is None
        self.close(log)

    def test_only_what_is_in_a_snapshot_is_forgotten(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(records(0, *[Woke()] * 10))
        refuses(lambda: log.forget(1))
        log.save_snapshot(6, b"x")
        refuses(lambda: log.forget(7))
        assert (log.first(), log.last()) == (0, 9)
        log.forget(6)
        assert (log.first(), log.last()) == (6, 9)
        assert [record.seq for record in log.read(after=5)] == [6, 7, 8, 9]
        log.append(records(10, Woke()))
        log.forget(2)
        assert [record.seq for record in log.read(after=5)] == [6, 7, 8, 9, 10]
        self.close(log)

    def test_snapshots_go_with_what_is_forgotten_after_them(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(records(0, *[Woke()] * 10))
        for seq in (2, 5, 8):
            log.save_snapshot(seq, b"x")
        log.forget(5)
        assert log.newest_snapshot(before=8) == (5, b"x")
        assert log.newest_snapshot(before=5) is None
        self.close(log)

    def test_reading_what_was_forgotten_is_one_clear_line(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(records(0, *[Woke()] * 10))
        log.save_snapshot(6, b"x")
        log.forget(6)
        for error in (refuses(lambda: list(log.read())), refuses(lambda: list(log.read(4)))):
            assert "forgotten" in str(error)
            assert "6" in str(error)
        self.close(log)

    def test_snapshots_survive_reopening(self, tmp_path: Path) -> None:
        if not self.durable:
            raise SkipTest("lives in memory")
        log = self.open(tmp_path)
        log.append(records(0, *[Woke()] * 10))
        log.save_snapshot(6, b"x")
        log.forget(6)
        self.close(log)
        again = self.open(tmp_path)
        assert again.newest_snapshot() == (6, b"x")
        assert (again.first(), again.last()) == (6, 9)
        self.close(again)

    @staticmethod
    def _refused(log: EventLog, seq: int) -> None:
        try:
            log.append(records(seq, Woke()))
        except CoadaptError:
            return
        raise AssertionError(f"record {seq} was accepted after record {log.last()}")


def refuses(call: Callable[[], object]) -> CoadaptError:
    try:
        call()
    except CoadaptError as error:
        return error
    raise AssertionError("it was accepted")


class InboxConformance:
    """Conformance suite of an inbox: subclass it and implement ``open``."""

    durable = True

    def open(self, directory: Path) -> Inbox:
        """The inbox in ``directory``: the same one each time it is called with the same directory."""
        raise NotImplementedError

    def close(self, inbox: Inbox) -> None:
        """Called when a test is done with ``inbox``."""

    def test_events_come_in_order_until_acknowledged(self, tmp_path: Path) -> None:
        inbox = self.open(tmp_path)
        numbers = [inbox.put(event) for event in EVERY_EVENT]
        assert numbers == sorted(set(numbers))
        assert list(inbox.take()) == list(zip(numbers, EVERY_EVENT, strict=True))
        inbox.acknowledge(numbers[0])
        inbox.acknowledge(numbers[2])
        assert [number for number, _ in inbox.take()] == [numbers[1], *numbers[3:]]
        inbox.acknowledge(numbers[0])
        assert len(list(inbox.take())) == len(numbers) - 2
        self.close(inbox)

    def test_numbers_are_never_given_again(self, tmp_path: Path) -> None:
        inbox = self.open(tmp_path)
        first = inbox.put(Woke())
        inbox.acknowledge(first)
        assert inbox.put(Woke()) > first
        self.close(inbox)

    def test_unacknowledged_events_survive_reopening(self, tmp_path: Path) -> None:
        if not self.durable:
            raise SkipTest("lives in memory")
        inbox = self.open(tmp_path)
        done, left = inbox.put(CancelRequested(job="a")), inbox.put(CancelRequested(job="b"))
        inbox.acknowledge(done)
        self.close(inbox)
        again = self.open(tmp_path)
        assert list(again.take()) == [(left, CancelRequested(job="b"))]
        self.close(again)

    def test_event_knows_its_own_number(self, tmp_path: Path) -> None:
        inbox = self.open(tmp_path)
        inbox.put(Woke())
        number = inbox.submit(lambda number: CancelRequested(job=f"bert-{number}"))
        assert list(inbox.take())[-1] == (number, CancelRequested(job=f"bert-{number}"))
        inbox.acknowledge(number)
        inbox.prune(0.0)
        assert inbox.submit(lambda number: CancelRequested(job=f"bert-{number}")) > number
        self.close(inbox)

    def test_jobs_are_numbered_one_after_another_whatever_else_is_put(self, tmp_path: Path) -> None:
        inbox = self.open(tmp_path)

        def make(number: int) -> AnyEvent:
            return JobSubmitted(job=f"bert-3-{number}", spec=JobSpec(name="bert-3"))

        first = inbox.submit(make, key="k")
        for _ in range(5):
            inbox.put(Woke())
        second = inbox.submit(make)
        assert second == first + 1
        assert inbox.submit(make, key="k") == first
        assert inbox.submit_all([(make, None), (make, None)]) == [first + 2, first + 3]
        taken = list(inbox.take())
        jobs = [event.job for _, event in taken if isinstance(event, JobSubmitted)]
        assert jobs == [f"bert-3-{first + offset}" for offset in range(4)]
        for number, _ in taken:
            inbox.acknowledge(number)
        inbox.prune(0.0)
        assert inbox.submit(make) == first + 4
        self.close(inbox)

    def test_same_key_and_event_is_put_once(self, tmp_path: Path) -> None:
        inbox = self.open(tmp_path)
        make = lambda number: CancelRequested(job=f"a-{number}")  # noqa: E731
        number = inbox.submit(make, key="k")
        inbox.acknowledge(number)
        assert inbox.submit(make, key="k") == number
        assert list(inbox.take()) == []
        assert inbox.submit(make) != number
        refuses(lambda: inbox.submit(lambda number: CancelRequested(job=f"b-{number}"), key="k"))
        assert len(list(inbox.take())) == 1
        self.close(inbox)

    def test_several_at_once_fail_one_by_one(self, tmp_path: Path) -> None:
        inbox = self.open(tmp_path)
        inbox.put(CancelRequested(job="a"), key="k")
        entries: list[tuple[Make, str | None]] = [
            (lambda number: CancelRequested(job=f"x-{number}"), "new"),
            (lambda number: CancelRequested(job="b"), "k"),
            (lambda number: CancelRequested(job="a"), "k"),
            (lambda number: CancelRequested(job=f"x-{number}"), "new"),
        ]
        first, refused, known, again = inbox.submit_all(entries)
        assert isinstance(refused, CoadaptError)
        assert isinstance(first, int)
        assert (known, again) == (1, first)
        assert [event for _, event in inbox.take()] == [
            CancelRequested(job="a"),
            CancelRequested(job=f"x-{first}"),
        ]
        assert list(inbox.submit_all([])) == []
        self.close(inbox)

    def test_event_that_cannot_be_made_leaves_nothing(self, tmp_path: Path) -> None:
        inbox = self.open(tmp_path)

        def broken(number: int) -> AnyEvent:
            raise ValueError("no")

        try:
            inbox.submit_all([(lambda number: Woke(), None), (broken, None)])
        except ValueError:
            pass
        else:
            raise AssertionError("it was accepted")
        assert list(inbox.take()) == []
        inbox.put(Woke())
        assert len(list(inbox.take())) == 1
        self.close(inbox)

    def test_only_acknowledged_entries_are_pruned_and_keys_later(self, tmp_path: Path) -> None:
        inbox = self.open(tmp_path)
        plain, keyed = inbox.put(CancelRequested(job="a")), inbox.put(CancelRequested(job="b"), key="k")
        waiting = inbox.put(CancelRequested(job="c"), key="w")
        inbox.acknowledge(plain)
        inbox.acknowledge(keyed)
        assert inbox.prune(3600.0) == 1
        assert inbox.put(CancelRequested(job="b"), key="k") == keyed
        assert inbox.prune(-3600.0) == 1
        assert inbox.put(CancelRequested(job="b"), key="k") > waiting
        assert next(number for number, _ in inbox.take()) == waiting
        self.close(inbox)


class LeaseConformance:
    """Conformance suite of a log with a lease: subclass it and implement ``open``. Several may be open at once, as by several processes."""

    def open(self, directory: Path) -> LeasedLog:
        """The log in ``directory``: each call a connection of its own."""
        raise NotImplementedError

    def close(self, log: LeasedLog) -> None:
        """Called when a test is done with ``log``."""

    def test_second_owner_waits_until_expiry(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        error = refuses(lambda: other.acquire("other", 10.0, now=106.0))
        assert "in use by controller one for another 4 s" in str(error)
        one.acquire("one", 10.0, now=108.0)
        refuses(lambda: other.acquire("other", 10.0, now=111.0))
        other.acquire("other", 10.0, now=118.0)
        self._close(one, other)

    def test_dead_owner_is_replaced_at_once(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        other.acquire("other", 10.0, now=100.0, gone=lambda owner: owner == "one")
        self._close(one, other)

    def test_owner_that_lost_the_lease_cannot_write(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        one.append(records(0, Woke(), Woke()))
        one.save_snapshot(0, b"one")
        other.acquire("other", 10.0, now=110.0)
        for write in (
            lambda: one.append(records(2, Woke())),
            lambda: one.save_snapshot(1, b"late"),
            lambda: one.forget(0),
        ):
            assert "one lost its lease to other" in str(refuses(write))
        assert other.newest_snapshot() == (0, b"one")
        other.append(records(2, Woke()))
        assert [record.seq for record in one.read()] == [0, 1, 2]
        self._close(one, other)

    def test_epoch_grows_with_every_change_of_the_holder(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        assert one.epoch == 0
        one.acquire("one", 10.0, now=100.0)
        first = one.epoch
        one.acquire("one", 10.0, now=105.0)
        assert one.epoch == first > 0
        other.acquire("other", 10.0, now=120.0)
        assert other.epoch > first
        other.release()
        one.release()  # of an epoch that is over: nothing happens
        one.acquire("one", 10.0, now=0.0)  # also where the clock was set back
        assert one.epoch > first + 1
        self._close(one, other)

    def test_owner_that_lost_the_lease_never_gets_it_back_by_renewing(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        other.acquire("other", 10.0, now=110.0)
        # expired, or given back: what it folded is out of date all the same
        assert "lost its lease" in str(refuses(lambda: one.acquire("one", 10.0, now=1000.0)))
        other.release()
        refuses(lambda: one.acquire("one", 10.0, now=1000.0))
        refuses(lambda: one.append(records(0, Woke())))
        # a new one of the same name may take it, and still the old one may not write
        again = self.open(tmp_path)
        again.acquire("one", 10.0, now=1000.0)
        refuses(lambda: one.append(records(0, Woke())))
        again.append(records(0, Woke()))
        self._close(one, other, again)

    def test_release_lets_the_next_one_in(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        one.release()
        assert one.holder() is None
        other.acquire("other", 10.0, now=100.0)
        one.release()  # not its own any more: nothing happens
        refuses(lambda: one.acquire("one", 10.0, now=100.0))
        self._close(one, other)

    def test_holder_is_known_to_everybody(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        assert other.holder() is None
        one.acquire("one", 10.0, now=100.0)
        holder = other.holder()
        assert holder is not None
        assert (holder.owner, holder.expires_at) == ("one", 110.0)
        assert holder.age_s >= 0.0
        self._close(one, other)

    def test_status_is_the_writers_and_read_by_everybody(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        assert other.status() is None
        one.acquire("one", 10.0, now=100.0)
        for said in ("first", "second"):
            one.save_status(said)
            assert other.status() == said
        other.acquire("other", 10.0, now=200.0)
        refuses(lambda: one.save_status("third"))
        assert other.status() == "second"
        self._close(one, other)

    def test_many_at_once_and_one_gets_it(self, tmp_path: Path) -> None:
        self._close(self.open(tmp_path))
        got: list[str] = []

        def ask(name: str) -> None:
            log = self.open(tmp_path)
            try:
                log.acquire(name, 10.0, now=100.0)
                got.append(name)
            except CoadaptError:
                pass
            finally:
                self.close(log)

        threads = [Thread(target=ask, args=(f"owner {i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1

    def test_store_belongs_to_one_home(self, tmp_path: Path) -> None:
        one, other = self.open(tmp_path), self.open(tmp_path)
        one.bind("here")
        one.bind("here")
        assert "another home" in str(refuses(lambda: other.bind("there")))
        assert one.identity == other.identity != ""
        self._close(one, other)

    def _close(self, *logs: LeasedLog) -> None:
        for log in logs:
            self.close(log)

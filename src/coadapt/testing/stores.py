"""What every event log and every inbox must do."""

from __future__ import annotations

from pathlib import Path
from unittest import SkipTest

from coadapt.errors import CoadaptError
from coadapt.model import AnyEvent, CancelRequested, Record, Woke, encode
from coadapt.runtime import EventLog, Inbox
from coadapt.testing.samples import EVERY_EVENT


def _records(first: int, *events: AnyEvent) -> list[Record]:
    return [Record(seq=first + i, at=float(first + i), event=event) for i, event in enumerate(events)]


class StoreConformance:
    """Subclass, and say how your log is opened."""

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
        written = _records(0, *EVERY_EVENT)
        log.append(written)
        assert list(log.read()) == written
        assert [encode(record) for record in log.read()] == [encode(record) for record in written]
        self.close(log)

    def test_last_follows_every_append(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(_records(0, Woke()))
        assert log.last() == 0
        log.append(_records(1, Woke(), CancelRequested(job="a")))
        assert log.last() == 2
        log.append([])
        assert log.last() == 2
        self.close(log)

    def test_read_gives_only_what_came_after(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        log.append(_records(0, *[Woke()] * 2500))
        assert [record.seq for record in log.read(after=2497)] == [2498, 2499]
        assert [record.seq for record in log.read()] == list(range(2500))
        assert list(log.read(after=2499)) == []
        self.close(log)

    def test_gap_repetition_and_wrong_beginning_are_refused(self, tmp_path: Path) -> None:
        log = self.open(tmp_path)
        self._refused(log, 1)
        log.append(_records(0, Woke(), Woke()))
        self._refused(log, 3)
        self._refused(log, 1)
        assert log.last() == 1
        assert len(list(log.read())) == 2
        self.close(log)

    def test_records_survive_reopening(self, tmp_path: Path) -> None:
        if not self.durable:
            raise SkipTest("lives in memory")
        log = self.open(tmp_path)
        written = _records(0, *EVERY_EVENT)
        log.append(written)
        self.close(log)
        again = self.open(tmp_path)
        assert list(again.read()) == written
        again.append(_records(len(written), Woke()))
        assert again.last() == len(written)
        self.close(again)

    @staticmethod
    def _refused(log: EventLog, seq: int) -> None:
        try:
            log.append(_records(seq, Woke()))
        except CoadaptError:
            return
        raise AssertionError(f"record {seq} was accepted after record {log.last()}")


class InboxConformance:
    """Subclass, and say how your inbox is opened."""

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

"""What every log with a writer's lease must do."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

from coadapt.errors import CoadaptError
from coadapt.model import Woke
from coadapt.runtime import LeasedLog
from coadapt.testing.stores import records, refuses


class LeaseConformance:
    """Subclass, and say how your log is opened: several may be open at once, as by several processes."""

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

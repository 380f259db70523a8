"""The hub's rows, in SQLite and in PostgreSQL: accepted once, kept until acknowledged, and written by the newest hub only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coadapt.executors.agent.session_messages import Told
from coadapt.executors.gang.messages import ClearMembers
from coadapt.executors.hub.hub_journal import (
    HubJournal,
    SavedSession,
    SavedUnit,
    TakenOverError,
    running_jobs,
)
from coadapt.model import JobStopped, Node, Placement, Slot, StartJob
from coadapt.store import Sql, open_store
from tests import postgres_server

ONE = Placement(slots=(Slot(node="m1", replicas=1, gpu_type="t4"),))
Opened = Callable[[], Sql]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    if request.param == "sqlite":
        yield lambda: open_store(tmp_path / "store.db").connect()
        return
    if reason := postgres_server.why_not():
        pytest.skip(reason)
    with postgres_server.server() as url:
        yield lambda: open_store(url).connect()


def test_actions_are_accepted_once_and_ends_kept_until_they_are_acknowledged(opened: Opened) -> None:
    journal = HubJournal(opened())
    start = StartJob(id=1, job="a", attempt=1, placement=ONE)
    with journal.transaction():
        assert [action for action, _ in journal.accept([start, start])] == [start]
        assert journal.accept([StartJob(id=2, job="a", attempt=1, placement=ONE)]) == []
    assert running_jobs(opened()) == {"a"}
    with journal.transaction():
        journal.ended(JobStopped(job="a", attempt=1, cause="lost"))
        journal.ended(JobStopped(job="a", attempt=1, cause="lost"))
    (held,) = journal.held()
    assert held.ended
    (happened,) = journal.unheard(0)
    journal.acknowledge(happened.number)
    assert journal.held() == []
    assert running_jobs(opened()) == set()
    journal.close()


def test_older_hub_cannot_write_any_more(opened: Opened) -> None:
    older = HubJournal(opened())
    newer = HubJournal(opened())
    with pytest.raises(TakenOverError, match="another hub has taken over"), older.transaction():
        older.set_text("x", "1")
    assert newer.text("x") is None
    with newer.transaction():
        newer.set_text("x", "2")
    assert newer.text("x") == "2"
    older.close()
    newer.close()


def test_commands_and_sessions_survive_their_hub(opened: Opened) -> None:
    journal = HubJournal(opened())
    saved = SavedSession(session="s", nodes=(Node(name="m1", gpus=1),), machine="m", boot="b")
    with journal.transaction():
        journal.add_session(saved)
        for number in (journal.next_order(), journal.next_order()):
            journal.order("s", Told(number=number, job="a", attempt=1, command=ClearMembers(members=("m0",))))
        journal.reported("s", 7)
        journal.save_unit(SavedUnit(name="u", node="m1", gpus=1, gpu_type="t4", asked_at=1.0), "wanted")
    journal.close()
    journal = HubJournal(opened())
    assert journal.sessions() == [(saved, 7)]
    assert [told.number for told in journal.orders("s")] == [1, 2]
    assert [state for _, state in journal.units()] == ["wanted"]
    with journal.transaction():
        journal.delivered("s", 1)
        assert journal.next_order() == 3, "a number is never used again"
    assert [told.number for told in journal.orders("s")] == [2]
    with journal.transaction():
        journal.session_gone("s", "it has left")
    assert journal.sessions() == []
    assert journal.orders("s") == []
    assert journal.session("s") == (saved, "it has left")
    journal.close()

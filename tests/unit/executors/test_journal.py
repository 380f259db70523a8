from __future__ import annotations

from pathlib import Path

from coadapt.executors.node.journal import Journal
from coadapt.executors.node.processes import Leader
from coadapt.model import (
    JobFinished,
    JobStarted,
    JobStopped,
    Placement,
    ReplicasReleased,
    Slot,
    StartJob,
    StopJob,
)

ONE = Placement(slots=(Slot(node="local", replicas=1),))
TWO = Placement(slots=(Slot(node="local", replicas=2),))
DONE = JobFinished(job="a", attempt=1, outcome="succeeded", exit_code=0)


def start(number: int, attempt: int = 1) -> StartJob:
    return StartJob(id=number, job="a", attempt=attempt, placement=ONE)


def a_journal(path: Path) -> Journal:
    return Journal(path / "keeper.db")


def test_accept_returns_each_action_once_even_after_reopening(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    stop = StopJob(id=2, job="a", attempt=1, why="pause")
    assert [action for action, _ in journal.accept([start(1), stop, start(1)])] == [start(1), stop]
    journal.close()
    assert a_journal(tmp_path).accept([start(1), stop]) == []


def test_accept_takes_a_lower_id_that_was_not_applied(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.accept([StopJob(id=7, job="b", attempt=1, why="pause")])
    assert len(journal.accept([start(5)])) == 1


def test_accept_refuses_the_start_of_a_stale_attempt(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    assert len(journal.accept([start(1, attempt=2)])) == 1
    assert journal.accept([start(2, attempt=1), start(3, attempt=2)]) == []
    assert len(journal.accept([start(4, attempt=3)])) == 1


def test_accept_never_remembers_a_negative_id(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    stop = StopJob(id=-1, job="a", attempt=1, why="cancel")
    assert len(journal.accept([stop])) == len(journal.accept([stop])) == 1


def test_attempt_is_held_until_its_end_is_acknowledged(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.accept([start(1)])
    assert [(h.attempt, h.ended) for h in journal.held()] == [(1, False)]
    journal.ended(DONE)
    assert [(h.attempt, h.ended) for h in journal.held()] == [(1, True)]
    journal.acknowledge(journal.unheard(0)[-1].number)
    assert journal.held() == []


def test_attempt_ends_once(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.ended(DONE)  # never started
    journal.accept([start(1)])
    journal.ended(DONE)
    journal.ended(JobStopped(job="a", attempt=1, cause="lost"))
    assert [happened.event for happened in journal.unheard(0)] == [DONE]


def test_events_are_given_again_until_acknowledged(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.accept([start(1)])
    started = JobStarted(job="a", attempt=1)
    journal.leads(("a", 1), [], started)
    journal.ended(DONE)
    first, second = journal.unheard(0)
    assert (first.event, second.event) == (started, DONE)
    assert journal.unheard(first.number) == [second]
    journal.acknowledge(first.number)
    journal.close()
    journal = a_journal(tmp_path)
    assert journal.unheard(0) == [second]
    journal.acknowledge(second.number)
    journal.accept([start(2, attempt=2)])
    journal.ended(JobStopped(job="a", attempt=2, cause="lost"))
    assert journal.unheard(0)[0].number > second.number


def test_unfinished_attempts_come_with_all_that_identifies_their_processes(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    ((_, token),) = journal.accept([start(1)])
    leader = Leader(pid=12, started=345, boot="b")
    journal.leads(("a", 1), [leader], JobStarted(job="a", attempt=1))
    (found,) = journal.unfinished()
    assert (found.token, found.leaders) == (token, (leader,))
    journal.ended(DONE)
    assert journal.unfinished() == []


def test_placement_changes_when_the_old_one_is_released(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.accept([start(1)])
    assert [h.placement for h in journal.held()] == [ONE]
    journal.released(ReplicasReleased(job="a", attempt=1, placement=TWO))
    assert [h.placement for h in journal.held()] == [TWO]


def test_journal_belongs_to_the_first_log_that_uses_it(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    assert (journal.bind("one"), journal.bind("other")) == ("one", "one")


def test_what_lies_long_behind_is_forgotten_and_still_never_done_twice(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    for number in range(1, 21):
        journal.accept([start(number, attempt=number)])
        end = JobFinished(job="a", attempt=number, outcome="succeeded", exit_code=0)
        if number != 2:
            journal.ended(end)
    unheard = [happened.number for happened in journal.unheard(0)]
    journal.acknowledge(unheard[-2])
    assert journal.prune(kept=5) > 0
    assert journal.prune(kept=5) == 0
    # attempt 2 has not ended, and that 20 has nobody has heard
    assert {held.attempt for held in journal.held()} == {2, 20}
    assert journal.accept([start(number, attempt=number) for number in range(1, 21)]) == []
    journal.close()
    again = a_journal(tmp_path)
    assert again.accept([start(3, attempt=99)]) == []
    assert len(again.accept([start(21, attempt=21)])) == 1

"""The keeper's host of gangs: what is written down before what, also when the journal cannot be written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coadapt.executors.gang.messages import (
    AttemptGone,
    ClearAttempt,
    Command,
    OpenRendezvous,
    Rendezvous,
    RendezvousOpened,
    ReplicaExited,
    ReplicasStarted,
    Report,
    SignalMembers,
    StartReplicas,
)
from coadapt.executors.node.gang_host import GangHost
from coadapt.executors.node.journal import Journal
from coadapt.executors.node.keeper_shutdown import orphans_of
from coadapt.executors.node.protocol import Apply
from coadapt.model import (
    Action,
    AnyEvent,
    JobResized,
    JobStarted,
    JobStopped,
    Measured,
    Node,
    NodeJoined,
    ReplicasReleased,
    ResizeJob,
    StartJob,
    StopJob,
)
from coadapt.wire.node_messages import Launch
from tests.unit.executors.gang_world import placed

KEY = ("a", 1)
ONE, TWO = placed(("n0", 1)), placed(("n0", 2))


class FakeNode:
    """A machine whose processes do what they are asked to."""

    def __init__(self) -> None:
        self.done: list[Command] = []
        self.admitted: dict[tuple[str, int], str] = {}
        self.orphans = SimpleNamespace(count=0, last="", living=False)

    def admit(self, key: tuple[str, int], launch: Launch, token: str) -> None:
        self.admitted[key] = token

    def forget(self, key: tuple[str, int]) -> None:
        del self.admitted[key]

    def attempt(self, key: tuple[str, int]) -> SimpleNamespace:
        return SimpleNamespace(leaders=[], unled=False)

    def unled(self) -> list[Any]:
        return []

    def do(self, key: tuple[str, int], command: Command, now: float) -> list[Report]:
        self.done.append(command)
        match command:
            case OpenRendezvous():
                place = Rendezvous(address="here", port=1)
                return [RendezvousOpened(number=command.number, rendezvous=place)]
            case StartReplicas():
                return [ReplicasStarted(members=tuple(member.name for member in command.members))]
            case SignalMembers():
                return [ReplicaExited(member=name, code=143) for name in command.members]
            case ClearAttempt():
                return [AttemptGone(number=command.number)]
        return []

    def starts(self) -> int:
        return sum(isinstance(command, StartReplicas) for command in self.done)

    def mark_asked(self) -> None:
        pass

    def poll(self, now: float) -> list[Any]:
        return []

    def reap(self) -> list[Any]:
        return []

    def listen(self, now: float) -> list[Measured]:
        return []

    def last_measurements(self, key: tuple[str, int], now: float) -> list[Measured]:
        return []

    def directories(self) -> set[Path]:
        return set()

    def patience_s(self, now: float) -> None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GangHost]:
    node = Node(name="n0", gpus=4, gpu_type="t4")
    host = GangHost(tmp_path, nodes=(), virtual=(node,), home=None, grace_s=5.0)
    host.node.close()
    host.node = FakeNode()  # type: ignore[assignment]
    yield host
    host.journal.close()


def said(host: GangHost) -> list[AnyEvent]:
    return [each.event for each in host.journal.unheard(0) if not isinstance(each.event, NodeJoined)]


def start(host: GangHost) -> None:
    action = StartJob(id=1, job="a", attempt=1, placement=ONE)
    apply(host, action, launches={"a": Launch(command=("train",))})


def apply(host: GangHost, *actions: Action, launches: dict[str, Launch] | None = None) -> None:
    host.apply(Apply(actions=actions, launches=launches or {}))
    host.turn()


def fails(*arguments: object, **options: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_attempt_runs_from_its_start_to_its_end(host: GangHost) -> None:
    start(host)
    assert said(host) == [JobStarted(job="a", attempt=1)]
    apply(host, ResizeJob(id=2, job="a", attempt=1, before=ONE, placement=TWO))
    apply(host, StopJob(id=3, job="a", attempt=1, why="pause"))
    assert said(host)[1:] == [
        ReplicasReleased(job="a", attempt=1, placement=TWO),
        JobResized(job="a", attempt=1, placement=TWO),
        JobStopped(job="a", attempt=1, cause="paused"),
    ]
    assert host.empty
    assert host.node.admitted == {}  # type: ignore[attr-defined]


def test_release_that_cannot_be_written_starts_nothing_until_it_can(
    host: GangHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(host)
    node: Any = host.node
    with monkeypatch.context() as full:
        full.setattr(host.journal, "released", fails)
        with pytest.raises(sqlite3.Error):
            apply(host, ResizeJob(id=2, job="a", attempt=1, before=ONE, placement=TWO))
        with pytest.raises(sqlite3.Error):
            host.turn()
        assert node.starts() == 1
    host.turn()
    assert node.starts() == 2
    assert said(host)[-1] == JobResized(job="a", attempt=1, placement=TWO)


def test_full_disk_keeps_nobody_from_being_stopped_and_loses_no_end(
    host: GangHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    node: Any = host.node
    with monkeypatch.context() as full:
        full.setattr(host.journal, "leads", fails)
        full.setattr(host.journal, "ended", fails)
        with pytest.raises(sqlite3.Error):
            start(host)
        host.close_down()
        assert isinstance(node.done[-2], ClearAttempt), "it was not stopped"
        with pytest.raises(sqlite3.Error):
            host.turn()
        assert not host.empty  # a keeper that ended now would take the end along
    host.turn()
    assert said(host) == [
        JobStarted(job="a", attempt=1),
        JobStopped(job="a", attempt=1, cause="shutdown"),
    ]
    assert host.empty


def test_many_attempts_that_end_in_one_turn_cost_a_bounded_number_of_transactions(host: GangHost) -> None:
    names = [f"j{number}" for number in range(143)]
    starts = [StartJob(id=i, job=job, attempt=1, placement=ONE) for i, job in enumerate(names, start=1)]
    launches = {job: Launch(command=("train",)) for job in names}
    before = Journal.transactions
    apply(host, *starts, launches=launches)
    stops = [StopJob(id=200 + i, job=job, attempt=1, why="pause") for i, job in enumerate(names)]
    apply(host, *stops)
    assert len(said(host)) == 2 * len(names)
    assert host.empty
    # for each request: one that accepts it, and one or two for what happened
    assert Journal.transactions - before <= 6


def test_orphans_that_were_ended_are_counted_in_the_journal(host: GangHost, tmp_path: Path) -> None:
    host.node.orphans.count, host.node.orphans.last = 2, "process 7 (sleep) of a"
    host.turn()
    host.turn()
    host.node.orphans.count = 3
    host.turn()
    assert orphans_of(tmp_path) == (3, "process 7 (sleep) of a")

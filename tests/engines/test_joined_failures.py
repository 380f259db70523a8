"""Joined machines when something dies: nothing runs twice, nothing is lost, and nothing is believed gone too early."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from coadapt.executors.agent.session_messages import (
    OLDEST,
    Declared,
    DeclareGone,
    Exchange,
    Exchanged,
    Join,
    Joined,
    Leave,
    Left,
    reply_decoder,
)
from coadapt.executors.node.keeper_shutdown import keeper_lock, pid_in
from coadapt.model import (
    AnyEvent,
    JobStarted,
    JobStopped,
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    Placement,
    Slot,
    StartJob,
)
from coadapt.store import open_store
from coadapt.store.token_table import Token, token_hash
from tests.engines.hub_bench import JoinedBench
from tests.engines.lives import a_beating_job, lives, overlaps
from tests.engines.machines import agents_of, asked, joined
from tests.waiting import DEADLINE_S, until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[JoinedBench]:
    # short, since tests wait until it runs out; what must survive longer has a bench of its own
    made = JoinedBench(tmp_path, lease_s=3.0, grace_s=1.0)
    try:
        yield made
    finally:
        made.close()


def start(
    bench: JoinedBench, directory: Path, number: int, *nodes: str, attempt: int = 1, **envs: str
) -> None:
    """Starts a job with one replica on each node."""
    bench.specs["a"] = a_beating_job("a", directory, **envs)
    placement = Placement(slots=tuple(Slot(node=node, replicas=1, gpu_type="t4") for node in nodes))
    bench.executor.apply([StartJob(id=number, job="a", attempt=attempt, placement=placement)])


def beating(directory: Path, attempt: int, count: int) -> None:
    until(
        lambda: (
            len([life for life in lives(directory, "a") if life.attempt == attempt and life.alive]) >= count
        )
    )


def test_hub_that_is_killed_is_replaced_and_nothing_stops(tmp_path: Path) -> None:
    # a busy machine may take long to start another hub: the lease must not run out meanwhile
    bench = JoinedBench(tmp_path, lease_s=DEADLINE_S, grace_s=1.0)
    try:
        beats = tmp_path / "beats"
        start(bench, beats, 1, "m1", "m2")
        assert bench.next() == JobStarted(job="a", attempt=1)
        beating(beats, 1, 2)
        before = {life.pid for life in lives(beats, "a")}
        hub = pid_in(keeper_lock(bench.home.hub))
        assert hub is not None
        os.kill(hub, signal.SIGKILL)
        held = bench.executor.inventory()
        assert [(each.job, each.attempt, each.ended) for each in held] == [("a", 1, False)]
        until(lambda: joined(bench.home) == {"m1", "m2"})
        assert bench.rest() == []
        assert {life.pid for life in lives(beats, "a") if life.alive} == before
        assert not [event for event in bench.nodes if isinstance(event, NodeLost)]
    finally:
        bench.close()


def test_what_an_agent_ran_dies_with_it_and_starts_once_more(bench: JoinedBench, tmp_path: Path) -> None:
    """Also a helper there that has left its session and hidden its origin; and the replica on the other machine ends."""
    beats = tmp_path / "beats"
    start(bench, beats, 1, "m1", "m2", HELPER="0")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 3)
    bench.machines[0].kill_agent()
    start(bench, beats, 2, "m1", "m2", attempt=2)
    assert bench.next() == JobStopped(job="a", attempt=1, cause="lost")
    assert not [life for life in lives(beats, "a") if life.attempt == 1 and life.alive]
    # the new attempt comes to machines that are there, or is lost in its turn with the old session
    event = bench.next()
    if isinstance(event, JobStopped):
        start(bench, beats, 3, "m1", "m2", attempt=3)
        event = bench.next()
    assert isinstance(event, JobStarted)
    beating(beats, event.attempt, 2)
    assert overlaps(beats, "a") == []


@pytest.mark.long
def test_controller_that_is_unreachable_longer_than_the_lease_ends_replicas_and_no_new_ones_come_before(
    bench: JoinedBench, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "m1", STUBBORN="1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 1)
    bench.relay.cut.set()
    start(bench, beats, 2, "m2", attempt=2)
    assert bench.next() == JobStopped(job="a", attempt=1, cause="lost")
    assert not [life for life in lives(beats, "a") if life.attempt == 1 and life.alive]
    bench.relay.cut.clear()
    until(lambda: joined(bench.home) == {"m1", "m2"})
    event = bench.next()
    assert event == JobStopped(job="a", attempt=2, cause="lost"), (
        "its machine was as unreachable as the other"
    )
    start(bench, beats, 3, "m2", attempt=3)
    assert bench.next() == JobStarted(job="a", attempt=3)
    beating(beats, 3, 1)
    assert overlaps(beats, "a") == []


@pytest.mark.long
def test_machine_without_power_is_believed_gone_only_after_its_lease(
    bench: JoinedBench, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "m1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    bench.machines[0].kill_all()
    start(bench, beats, 2, "m2", attempt=2)
    (line,) = [each for each in agents_of(bench.home).agents if each.nodes == ("m1",)]
    assert bench.next() == JobStopped(job="a", attempt=1, cause="lost")
    assert bench.next() == JobStarted(job="a", attempt=2)
    assert joined(bench.home) == {"m2"}
    assert NodeLost(node="m1") in bench.nodes
    assert line.lease_left_s > 0
    beating(beats, 2, 1)
    assert overlaps(beats, "a") == []
    # it comes back as a new session, and is welcome
    bench.machines[0].start()
    until(lambda: joined(bench.home) == {"m1", "m2"})


@pytest.mark.long
def test_administrator_who_declares_a_machine_gone_is_believed_at_once(tmp_path: Path) -> None:
    bench = JoinedBench(tmp_path, lease_s=3600.0, grace_s=1.0)
    try:
        beats = tmp_path / "beats"
        start(bench, beats, 1, "m1")
        assert bench.next() == JobStarted(job="a", attempt=1)
        assert asked(bench.home, DeclareGone(node="m7")) == Declared(error="node m7 is not joined")
        bench.machines[0].kill_all()
        assert asked(bench.home, DeclareGone(node="m1")) == Declared()
        assert bench.next() == JobStopped(job="a", attempt=1, cause="lost")
    finally:
        bench.close()


@pytest.mark.long
def test_agent_that_was_declared_gone_and_is_not_ends_what_it_runs_before_it_joins_again(
    bench: JoinedBench, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "m1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 1)
    (before,) = [each.session for each in agents_of(bench.home).agents if each.nodes == ("m1",)]
    assert asked(bench.home, DeclareGone(node="m1")) == Declared()
    until(lambda: {each.session for each in agents_of(bench.home).agents if each.nodes == ("m1",)} - {before})
    assert not [life for life in lives(beats, "a") if life.alive]


@pytest.mark.long
@pytest.mark.parametrize("polite", ["0", "1"])
def test_machine_that_leaves_saves_what_runs_and_is_gone_at_once(tmp_path: Path, polite: str) -> None:
    """Also a script that exits with 0 on SIGTERM has not finished."""
    bench = JoinedBench(tmp_path, lease_s=3600.0, grace_s=30.0)
    try:
        beats = tmp_path / "beats"
        start(bench, beats, 1, "m1", POLITE=polite)
        assert bench.next() == JobStarted(job="a", attempt=1)
        beating(beats, 1, 1)
        assert bench.machines[0].stop() == 0
        assert bench.next() == JobStopped(job="a", attempt=1, cause="preempted")
        until(lambda: joined(bench.home) == {"m2"})
        assert not [life for life in lives(beats, "a") if life.alive]
    finally:
        bench.close()


def test_second_agent_of_a_node_is_refused_until_the_first_is_gone(bench: JoinedBench) -> None:
    node = Node(name="m1", gpus=1, gpu_type="t4")
    again = Join(session="another", nodes=(node,), machine="elsewhere", boot="b", shares_checkpoints=True)
    answer = asked(bench.home, again)
    assert isinstance(answer, Joined)
    assert "node m1 is joined by another agent" in answer.refused
    assert not answer.final
    # and whoever was never let in, or no longer is, learns that it is over
    answer = asked(bench.home, Exchange(session="another"))
    assert answer == Exchanged(over="the controller does not know it")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((), "the agent offers no node"),
        ((Node(name="../x", gpus=1),), "is no name of a node"),
        ((Node(name="m9", gpus=0),), "it must be 1 to 1024"),
    ],
)
def test_impossible_offers_are_refused_for_good(
    bench: JoinedBench, nodes: tuple[Node, ...], message: str
) -> None:
    answer = asked(bench.home, Join(session="x", nodes=nodes, machine="m", boot="b", shares_checkpoints=True))
    assert isinstance(answer, Joined)
    assert message in answer.refused
    assert answer.final
    answer = asked(
        bench.home,
        Join(
            session="x",
            nodes=(Node(name="m9", gpus=1),),
            machine="m",
            boot="b",
            shares_checkpoints=True,
            protocol=99,
        ),
    )
    assert isinstance(answer, Joined)
    assert "update the controller first" in answer.refused


def test_agent_that_is_too_old_is_refused_for_good(bench: JoinedBench) -> None:
    node = Node(name="m9", gpus=1)
    old = Join(session="x", nodes=(node,), machine="m", boot="b", protocol=OLDEST - 1, version="0.0.1")
    answer = asked(bench.home, old)
    assert isinstance(answer, Joined)
    assert answer.refused == "this agent (coadapt 0.0.1) is too old for the controller; update it"
    assert answer.final


def test_agent_and_hub_may_be_one_release_apart(bench: JoinedBench) -> None:
    """Fields are only added: an older agent does not send them, a newer one sends some that nobody here knows."""
    node = {"name": "m9", "gpus": 1, "gpu_type": "t4"}
    older = {
        "type": "Join",
        "session": "old",
        "nodes": [node],
        "machine": "m9",
        "boot": "b",
        "shares_checkpoints": True,
    }
    newer = {**older, "session": "new", "nodes": [{**node, "name": "m10"}], "machine": "m10", "colour": "red"}
    for request in (older, newer):
        answer = msgspec.json.decode(bench.relay.ask(msgspec.json.encode(request)))
        assert "refused" not in answer
        assert answer["lease_s"] == 3.0
    raw = bench.relay.ask(msgspec.json.encode({"type": "Exchange", "session": "new", "mood": "good"}))
    assert reply_decoder.decode(raw) == Exchanged()
    # and the other way: answers of a newer hub, and of one that knew less
    newer_answer = {"type": "Exchanged", "acknowledged": 3, "weather": "fine", "commands": []}
    assert reply_decoder.decode(msgspec.json.encode(newer_answer)) == Exchanged(acknowledged=3)
    assert reply_decoder.decode(b'{"type": "Joined", "lease_s": 3.0}') == Joined(lease_s=3.0)


def test_machine_that_will_be_taken_away_is_drained_before_and_open_when_it_is_back(
    bench: JoinedBench,
) -> None:
    node = Node(name="m3", gpus=1, gpu_type="t4")
    first = Join(
        session="one", nodes=(node,), machine="m3", boot="b", shares_checkpoints=True, remaining_s=2.0
    )
    assert asked(bench.home, first) == asked(bench.home, first), "a question twice is one claim"
    until(lambda: NodeDrained(node="m3") in _nodes_of(bench, "m3"))
    again = msgspec.structs.replace(first, session="two", buried=("one",), remaining_s=None)
    assert isinstance(asked(bench.home, again), Joined)
    until(lambda: NodeOpened(node="m3") in _nodes_of(bench, "m3"))
    found = _nodes_of(bench, "m3")
    assert [type(event).__name__ for event in found] == [
        "NodeJoined",
        "NodeDrained",
        "NodeJoined",
        "NodeOpened",
    ]
    assert [event.until is None for event in found if isinstance(event, NodeJoined)] == [False, True]


def _nodes_of(bench: JoinedBench, name: str) -> list[AnyEvent]:
    bench.rest()
    found = []
    for event in bench.nodes:
        of = event.node.name if isinstance(event, NodeJoined) else getattr(event, "node", "")
        if of == name:
            found.append(event)
    return found


def test_machine_that_booted_again_takes_the_place_of_its_former_self(bench: JoinedBench) -> None:
    node = Node(name="m3", gpus=1, gpu_type="t4")
    for session, boot in (("one", "first"), ("two", "second")):
        answer = asked(
            bench.home, Join(session=session, nodes=(node,), machine="m3", boot=boot, shares_checkpoints=True)
        )
        assert isinstance(answer, Joined)
        assert not answer.refused
    assert asked(bench.home, Exchange(session="one")) == Exchanged(over="its machine has booted again")
    until(lambda: len(_joins(bench)) == 2)


def test_machine_without_the_key_of_another_does_not_take_its_place(bench: JoinedBench) -> None:
    """Whoever has the token, and says that the machine has booted again, does not end what runs there."""
    node = Node(name="m3", gpus=1, gpu_type="t4")
    join = Join(
        session="one", nodes=(node,), machine="m3", boot="first", shares_checkpoints=True, key="k", by="t"
    )
    assert asked(bench.home, join).refused == ""  # type: ignore[attr-defined]
    for key in ("", "another"):
        thief = msgspec.structs.replace(join, session=f"of {key}", boot="second", key=key)
        answer = asked(bench.home, thief)
        assert isinstance(answer, Joined)
        assert "node m3 is joined by another agent" in answer.refused
    # nor does another token speak for the session
    for by in ("", "another"):
        assert asked(bench.home, Exchange(session="one", by=by)) == Exchanged(
            over="it was joined with another token"
        )
        assert asked(bench.home, Leave(session="one", by=by)) == Left()
    assert asked(bench.home, Exchange(session="one", by="t")) == Exchanged()
    again = msgspec.structs.replace(join, session="two", boot="second")
    assert asked(bench.home, again).refused == ""  # type: ignore[attr-defined]


def test_token_is_for_the_nodes_of_the_first_machine_or_those_it_names(bench: JoinedBench) -> None:
    with closing(open_store(bench.home.store(bench.options)).tokens()) as tokens:
        for name, nodes in (("first", ()), ("rack", ("r1", "gpu-*")), ("every", None)):
            tokens.add(Token(name=name, role="node", made_at=0.0, nodes=nodes), token_hash(name))

    def join(by: str, *names: str) -> str:
        nodes = tuple(Node(name=name, gpus=1, gpu_type="t4") for name in names)
        request = Join(
            session=f"{by} {names}", nodes=nodes, machine=names[0], boot="b", shares_checkpoints=True, by=by
        )
        answer = asked(bench.home, request)
        assert isinstance(answer, Joined)
        assert answer.final == bool(answer.refused)
        return answer.refused

    assert join("first", "a", "b") == join("rack", "gpu-7") == join("rack", "r1") == join("every", "x") == ""
    assert join("first", "c") == (
        "the token first is for node a, b, not for c; an administrator creates another: "
        "coadapt token create NAME --role node --node c"
    )
    assert join("rack", "r1x").startswith("the token rack is for node r1, gpu-*, not for r1x;")
    assert {"a", "b", "gpu-7", "r1", "x"} <= joined(bench.home)


def _joins(bench: JoinedBench) -> list[NodeJoined]:
    bench.rest()
    return [event for event in bench.nodes if isinstance(event, NodeJoined) and event.node.name == "m3"]


def test_machine_that_does_not_see_the_checkpoints_is_refused_beside_others(bench: JoinedBench) -> None:
    node = Node(name="m4", gpus=1, gpu_type="t4")
    where = asked(bench.home, Join(session="s", nodes=(node,), machine="m4", boot="b"))
    assert isinstance(where, Joined)
    assert Path(where.checkpoints, ".coadapt-proof").read_text() == where.proof
    assert joined(bench.home) == {"m1", "m2"}, "a question is no claim"
    answer = asked(
        bench.home, Join(session="s", nodes=(node,), machine="m4", boot="b", shares_checkpoints=False)
    )
    assert isinstance(answer, Joined)
    assert "--checkpoints DIR" in answer.refused

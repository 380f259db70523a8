"""The gang by hand: what it orders of which machine, and what has to have happened before."""

from __future__ import annotations

import msgspec
import pytest

from coadapt.executors.gang.gang import Begin, Gang, Order, Output, Record, Recorded, Resize, Stop, Tick
from coadapt.executors.gang.gang_table import GangTable
from coadapt.executors.gang.messages import (
    AskStore,
    AttemptGone,
    CannotStart,
    ClearAttempt,
    Command,
    FollowOutput,
    Member,
    Notice,
    OpenRendezvous,
    ReleaseDevices,
    Rendezvous,
    RendezvousLost,
    RendezvousOpened,
    ReplicaExited,
    ReplicasStarted,
    Report,
    RunSetup,
    SetupEnded,
    SignalMembers,
    StartReplicas,
    StoreAnswered,
)
from coadapt.executors.gang.replica_seats import seats
from coadapt.model import (
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Placement,
    ReplicasReleased,
    StartJob,
    StopJob,
)
from coadapt.wire.node_messages import Launch
from tests.unit.executors.gang_world import placed

MACHINES = {"n0": "left", "n1": "left", "n2": "right"}
BOTH = placed(("n0", 1), ("n2", 1))
PLACE = Rendezvous(address="left", port=7, store="store")


def a_gang(
    placement: Placement = BOTH, *, setup: bool = False, command: tuple[str, ...] = ("train",)
) -> Gang:
    launch = Launch(command=command, setup=("prepare",) if setup else ())
    action = StartJob(id=1, job="a", attempt=1, placement=placement)
    return Gang(action, launch, machine_of=MACHINES.__getitem__, grace_s=10.0)


def a_gang_set_up_on_the_left() -> Gang:
    """One replica runs on the machine ``left``; ``right`` has not been set up."""
    gang = a_gang(placed(("n0", 1)), setup=True)
    gang.handle(Begin(), 0.0)
    gang.handle(SetupEnded(member="setup1", code=0), 0.0, "left")
    gang.handle(RendezvousOpened(number=2, rendezvous=PLACE), 0.0, "left")
    gang.handle(ReplicasStarted(members=("m0",)), 0.0, "left")
    return gang


def ordered(outputs: list[Output]) -> list[tuple[str, type]]:
    return [(each.machine, type(each.command)) for each in outputs if isinstance(each, Order)]


def gone(cleared: list[Output], machine: str) -> AttemptGone:
    """What a machine says once it has done what it was told."""
    commands = {each.machine: each.command for each in cleared if isinstance(each, Order)}
    command = commands[machine]
    assert isinstance(command, ClearAttempt)
    return AttemptGone(number=command.number)


def started(gang: Gang, now: float = 0.0) -> list[Output]:
    """Begins a gang without a set-up on both machines; what it does when all replicas run."""
    (asked,) = gang.handle(Begin(), now)
    assert isinstance(asked, Order)
    assert isinstance(asked.command, OpenRendezvous)
    gang.handle(RendezvousOpened(number=asked.command.number, rendezvous=PLACE), now, "left")
    gang.handle(ReplicasStarted(members=("m0",)), now, "left")
    return gang.handle(ReplicasStarted(members=("m1",)), now, "right")


def test_job_has_started_when_every_machine_says_that_its_replicas_run() -> None:
    gang = a_gang(setup=True)
    assert gang.handle(Begin(), 0.0) == [
        Order("left", RunSetup(member="setup1")),
        Order("right", RunSetup(member="setup2")),
    ]
    assert gang.handle(SetupEnded(member="setup2", code=0), 1.0, "right") == []
    (asked,) = gang.handle(SetupEnded(member="setup1", code=0), 2.0, "left")
    assert asked == Order("left", OpenRendezvous(number=3))
    outputs = gang.handle(RendezvousOpened(number=3, rendezvous=PLACE), 3.0, "left")
    assert ordered(outputs) == [("left", StartReplicas), ("right", StartReplicas)]
    commands = [each.command for each in outputs if isinstance(each, Order)]
    assert all(isinstance(each, StartReplicas) and each.rendezvous == PLACE for each in commands)
    assert gang.handle(ReplicasStarted(members=("m1",)), 4.0, "right") == []
    said = gang.handle(ReplicasStarted(members=("m0",)), 5.0, "left")
    assert ordered(said) == [("left", FollowOutput), ("right", FollowOutput)]
    assert said[-1] == Record((JobStarted(job="a", attempt=1),))


def test_replica_that_cannot_start_on_one_machine_ends_those_on_the_other() -> None:
    gang = a_gang()
    gang.handle(Begin(), 0.0)
    gang.handle(RendezvousOpened(number=1, rendezvous=PLACE), 0.0, "left")
    gang.handle(ReplicasStarted(members=("m0",)), 0.0, "left")
    told = gang.handle(CannotStart(members=("m1",), reason="cannot start: no GPU"), 0.0, "right")
    assert told == [Order("left", SignalMembers(members=("m0",), signal="terminate"))]
    cleared = gang.handle(ReplicaExited(member="m0", code=143), 1.0, "left")
    assert ordered(cleared) == [("left", ClearAttempt), ("right", ClearAttempt)]
    assert gang.handle(gone(cleared, "left"), 2.0, "left") == []
    *released, record = gang.handle(gone(cleared, "right"), 3.0, "right")
    assert ordered(released) == [("left", ReleaseDevices), ("right", ReleaseDevices)]
    assert isinstance(record, Record)
    (end,) = record.events
    assert isinstance(end, JobFinished)
    assert (end.kind, end.reason) == ("start", "cannot start: no GPU")


def test_replicas_of_the_new_size_start_only_when_the_release_is_written_down() -> None:
    gang, one = a_gang(), placed(("n0", 1))
    gang.handle(Begin(), 0.0)
    gang.handle(RendezvousOpened(number=1, rendezvous=Rendezvous(address="l", port=1)), 0.0, "left")
    gang.handle(ReplicasStarted(members=("m0",)), 0.0, "left")
    gang.handle(ReplicasStarted(members=("m1",)), 0.0, "right")
    assert ordered(gang.handle(Resize(one), 1.0)) == [("left", SignalMembers), ("right", SignalMembers)]
    gang.handle(ReplicaExited(member="m0", code=143), 2.0, "left")
    cleared = gang.handle(ReplicaExited(member="m1", code=143), 2.0, "right")
    gang.handle(gone(cleared, "right"), 3.0, "right")
    assert gang.handle(gone(cleared, "right"), 3.0, "left") == []  # not what this machine was asked
    outputs = gang.handle(gone(cleared, "left"), 3.0, "left")
    released = (ReplicasReleased(job="a", attempt=1, placement=one),)
    assert outputs[-1] == Record(released)
    assert gang.handle(Tick(), 4.0) == []
    assert gang.handle(Recorded((JobStarted(job="a", attempt=1),)), 4.0) == []  # an earlier one
    (asked,) = gang.handle(Recorded(released), 5.0)
    assert ordered([asked]) == [("left", OpenRendezvous)]
    # the answer to an older question starts nothing
    assert gang.handle(RendezvousOpened(number=1, rendezvous=PLACE), 5.0, "left") == []


def test_attempt_that_is_resized_before_it_begins_starts_at_the_new_placement() -> None:
    gang, one = a_gang(), placed(("n2", 1))
    assert gang.handle(Resize(one), 0.0) == []
    released = (ReplicasReleased(job="a", attempt=1, placement=one),)
    assert gang.handle(Begin(), 1.0) == [Record(released)]
    assert gang.handle(Recorded(released), 2.0) == [Order("right", OpenRendezvous(number=1))]
    (start,) = gang.handle(RendezvousOpened(number=1, rendezvous=PLACE), 3.0, "right")
    assert isinstance(start, Order)
    assert isinstance(start.command, StartReplicas)
    said = gang.handle(ReplicasStarted(members=("m0",)), 3.0, "right")
    assert said[-1] == Record((JobResized(job="a", attempt=1, placement=one),))


def test_attempt_that_is_stopped_before_it_begins_starts_nothing() -> None:
    gang = a_gang(setup=True)
    assert gang.handle(Stop("cancelled"), 0.0) == []
    stopped = JobStopped(job="a", attempt=1, cause="cancelled")
    assert gang.handle(Begin(), 1.0) == [Record((stopped,))]


def test_resize_in_place_asks_the_machine_that_has_the_store() -> None:
    gang = a_gang()
    started(gang)
    outputs = gang.handle(Resize(placed(("n2", 1))), 1.0)
    asked = [each for each in outputs if isinstance(each, Order) and isinstance(each.command, AskStore)]
    assert [each.machine for each in asked] == ["left"]
    assert asked[0].command == AskStore(number=2, restarts=0, keys=("listening0",))


def test_attempt_whose_store_is_gone_is_preempted() -> None:
    gang = a_gang()
    started(gang)
    assert gang.handle(RendezvousLost(number=9), 1.0, "left") == []  # an older one's
    told = gang.handle(RendezvousLost(number=1), 1.0, "left")
    assert ordered(told) == [("left", SignalMembers), ("right", SignalMembers)]
    gang.handle(ReplicaExited(member="m0", code=143), 2.0, "left")
    cleared = gang.handle(ReplicaExited(member="m1", code=143), 2.0, "right")
    gang.handle(gone(cleared, "left"), 3.0, "left")
    end = gang.handle(gone(cleared, "right"), 3.0, "right")[-1]
    assert end == Record((JobStopped(job="a", attempt=1, cause="preempted"),))


def finish(gang: Gang, cleared: list[Output]) -> Output:
    """Both machines say that nothing is left; what is recorded."""
    gang.handle(gone(cleared, "left"), 8.0, "left")
    return gang.handle(gone(cleared, "right"), 9.0, "right")[-1]


def test_exit_before_the_signal_counts_although_it_is_heard_of_after_the_stop() -> None:
    gang = a_gang()
    started(gang)
    gang.handle(Stop("paused"), 1.0)
    gang.handle(ReplicaExited(member="m0", code=0, asked=False), 2.0, "left")
    cleared = gang.handle(ReplicaExited(member="m1", code=0, asked=False), 3.0, "right")
    assert finish(gang, cleared) == Record(
        (JobFinished(job="a", attempt=1, outcome="succeeded", exit_code=0),)
    )


def test_replica_that_exits_with_0_since_its_machine_leaves_takes_the_others_along() -> None:
    gang = a_gang()
    started(gang)
    told = gang.handle(ReplicaExited(member="m0", code=0, asked=True), 1.0, "left")
    assert told == [Order("right", SignalMembers(members=("m1",), signal="terminate"))]
    cleared = gang.handle(ReplicaExited(member="m1", code=0, asked=True), 2.0, "right")
    assert finish(gang, cleared) == Record((JobStopped(job="a", attempt=1, cause="preempted"),))


def test_machine_of_an_older_release_does_not_say_whether_it_asked() -> None:
    gang = a_gang()
    started(gang)
    gang.handle(ReplicaExited(member="m0", code=0), 1.0, "left")
    gang.handle(Stop("paused"), 1.5)
    cleared = gang.handle(ReplicaExited(member="m1", code=0), 2.0, "right")
    assert finish(gang, cleared) == Record((JobStopped(job="a", attempt=1, cause="paused"),))


def test_newcomers_that_are_not_needed_any_more_are_killed() -> None:
    gang = a_gang()
    started(gang)
    gang.handle(Resize(placed(("n0", 1), ("n2", 2))), 1.0)
    joined = gang.handle(StoreAnswered(number=2, there=True), 1.1, "left")
    assert ordered(joined)[0] == ("right", StartReplicas)
    gang.handle(ReplicasStarted(members=("m2",)), 1.2, "right")
    # the job has come to its end before anybody was told
    outputs = gang.handle(ReplicaExited(member="m0", code=0), 1.3, "left")
    assert outputs == [Order("right", SignalMembers(members=("m2",), signal="kill"))]
    gang.handle(ReplicaExited(member="m2", code=-9), 1.4, "right")
    cleared = gang.handle(ReplicaExited(member="m1", code=0), 1.5, "right")
    gang.handle(gone(cleared, "right"), 1.6, "right")
    end = gang.handle(gone(cleared, "left"), 1.6, "left")[-1]
    assert end == Record((JobFinished(job="a", attempt=1, outcome="succeeded", exit_code=0),))


def test_machine_that_is_not_set_up_is_reached_by_a_restart() -> None:
    gang = a_gang_set_up_on_the_left()
    told = gang.handle(Resize(BOTH), 1.0)
    assert told == [Order("left", SignalMembers(members=("m0",), signal="terminate"))]
    cleared = gang.handle(ReplicaExited(member="m0", code=143), 2.0, "left")
    gang.handle(gone(cleared, "left"), 3.0, "left")
    released = (ReplicasReleased(job="a", attempt=1, placement=BOTH),)
    assert ordered(gang.handle(Recorded(released), 4.0)) == [("right", RunSetup)]


def test_attempt_whose_replicas_are_gone_is_not_resized_in_place() -> None:
    gang = a_gang_set_up_on_the_left()
    gang.handle(Resize(BOTH), 1.0)
    cleared = gang.handle(ReplicaExited(member="m0", code=143), 2.0, "left")
    gang.handle(gone(cleared, "left"), 3.0, "left")
    (setup,) = gang.handle(Recorded((ReplicasReleased(job="a", attempt=1, placement=BOTH),)), 4.0)
    assert isinstance(setup, Order)
    assert isinstance(setup.command, RunSetup)
    # the other machine is being set up, and there is nobody who could be asked
    told = gang.handle(Resize(placed(("n0", 2))), 5.0)
    assert told == [Order("right", SignalMembers(members=(setup.command.member,), signal="terminate"))]


def test_set_up_that_takes_too_long_is_ended() -> None:
    gang = a_gang(placed(("n0", 1)), setup=True)
    gang.handle(Begin(), 0.0)
    assert gang.next_at == pytest.approx(3600.0)
    assert gang.handle(Tick(), 3599.0) == []
    told = gang.handle(Tick(), 3600.0)
    assert told == [Order("left", SignalMembers(members=("setup1",), signal="terminate"))]
    assert gang.next_at == pytest.approx(3610.0)
    assert gang.handle(Tick(), 3610.0) == [Order("left", SignalMembers(members=("setup1",), signal="kill"))]


def test_stop_that_comes_with_a_start_keeps_it_from_starting() -> None:
    table = GangTable(machine_of=lambda key, node: MACHINES[node], grace_s=10.0)
    launches = {"a": Launch(command=("train",))}
    assert table.act(StartJob(id=1, job="a", attempt=1, placement=BOTH), launches, 0.0) == []
    assert table.act(StopJob(id=2, job="a", attempt=1, why="cancel"), {}, 0.0) == []
    end = (JobStopped(job="a", attempt=1, cause="cancelled"),)
    assert table.tick(0.0) == [(("a", 1), Record(end))]
    assert ("a", 1) in table  # until that is written down
    assert table.recorded(("a", 1), end, 1.0) == []
    assert not table


def test_newer_attempt_ends_all_older_ones_also_one_that_waits() -> None:
    table = GangTable(machine_of=lambda key, node: MACHINES[node], grace_s=10.0)
    launches = {"a": Launch(command=("train",))}
    found = []
    for number in (1, 2, 3):
        start = StartJob(id=number, job="a", attempt=number, placement=BOTH)
        found += table.act(start, launches, 0.0)
        if number == 1:
            assert [key for key, _ in table.tick(0.0)] == [("a", 1)]
    ends = []
    while found:
        ((key, output),) = found
        if not isinstance(output, Record):
            break
        ends.append(output.events[0])
        found = table.recorded(key, output.events, 2.0)
    assert ends == [
        JobStopped(job="a", attempt=1, cause="lost"),
        JobStopped(job="a", attempt=2, cause="lost"),
    ]
    assert key == ("a", 3)


@pytest.mark.parametrize(
    "message",
    [
        StartReplicas(
            members=(Member(name="m0", number=0, seat=seats(BOTH)[0], beside=("m0",)),),
            rendezvous=PLACE,
            restarts=1,
            join=2,
        ),
        AskStore(number=1, restarts=0, notice=Notice(generation=1, members=("m0",), nodes=(0,))),
        FollowOutput(member="m0", placement=BOTH),
        RunSetup(member="setup1"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_commands_travel_as_json(message: Command) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=Command) == message


@pytest.mark.parametrize(
    "message",
    [
        ReplicaExited(member="m0", code=-9, lines="killed", out_of_memory=True),
        RendezvousOpened(number=1, rendezvous=PLACE),
        AttemptGone(number=7),
    ],
    ids=lambda message: type(message).__name__,
)
def test_reports_travel_as_json(message: Report) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=Report) == message

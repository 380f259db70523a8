"""The whole state of a gang as plain data, so that a host can write it down before it speaks and go on after a crash.

``load(save(gang))`` behaves as ``gang`` does; a test saves and loads at every step of random runs, and fails when a gang has
an attribute that is not saved. Fields only ever gain defaults: a host reads what the release before it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from coadapt.executors.gang.gang import Gang
from coadapt.executors.gang.messages import Rendezvous
from coadapt.executors.gang.replica_seats import Seat
from coadapt.executors.gang.resize import GangReplica, InPlaceResize, Stage
from coadapt.executors.gang.verdict import Exit
from coadapt.model import Placement, StartJob
from coadapt.model.events import FailureKind, StopCause
from coadapt.wire.node_messages import Launch


class SavedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A ``GangReplica``."""

    name: str
    number: int
    seat: Seat
    machine: str
    counts: bool


class SavedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A ``Verdict``: its attributes, without underscores."""

    cause: StopCause | None
    excused: bool
    fatal: FailureKind
    machine_lost: bool
    exits: list[Exit]
    last_lines: dict[int, str]
    broken: str
    broken_lines: str


class SavedResize(msgspec.Struct, frozen=True, kw_only=True):
    """An ``InPlaceResize``; replicas by name."""

    stage: Stage
    generation: int
    first_generation: int
    staying: list[str]
    leaving: list[str]
    joining: list[str]
    nodes: list[str]
    remains: set[str] | None
    ways: list[list[str]]
    until: float
    look_at: float
    asked: bool


class SavedGang(msgspec.Struct, frozen=True, kw_only=True):
    """A ``Gang``: its attributes, without underscores; replicas by name."""

    job: str
    attempt: int
    placement: Placement
    launch: Launch
    waiting: bool
    ended: bool
    begun: bool
    resized: bool
    replicas: list[str]
    known: list[SavedReplica]
    generation: int
    restarts: int
    names: int
    questions: int
    running: set[tuple[str, str]]
    awaited: set[str]
    starting: bool
    kill_at: float | None
    kill_again_at: float
    next: Placement | None
    releasing: Placement | None
    prepared: set[str]
    setup_until: float | None
    meeting: int | None
    met: int | None
    rendezvous: Rendezvous | None
    store_machine: str
    dumping: set[str]
    stacks: list[str]
    touched: set[str]
    clearing: dict[str, int]
    listening: set[str]
    question: int | None
    verdict: SavedVerdict
    move: SavedResize | None


#: Attributes that are plain data, by class.
_GANG = (
    *("begun", "resized", "generation", "restarts", "names", "questions", "running", "awaited", "starting"),
    *(
        "kill_at",
        "kill_again_at",
        "next",
        "releasing",
        "prepared",
        "setup_until",
        "meeting",
        "met",
        "rendezvous",
    ),
    *("store_machine", "dumping", "stacks", "touched", "clearing", "listening", "question"),
)
_VERDICT = ("fatal", "machine_lost", "exits", "last_lines", "broken", "broken_lines")
_MOVE = ("remains", "first_generation", "until", "look_at", "asked")


def save(gang: Gang, *, waiting: bool = False) -> SavedGang:
    """Returns the state of a gang; ``waiting``: it has not begun, since an older attempt of its job is not gone."""
    verdict = gang._verdict
    return SavedGang(
        job=gang.job,
        attempt=gang.attempt,
        placement=gang.placement,
        launch=gang._launch,
        waiting=waiting,
        ended=gang.ended,
        replicas=_names(gang._replicas),
        known=[
            SavedReplica(name=r.name, number=r.number, seat=r.seat, machine=r.machine, counts=r.counts)
            for r in gang._known.values()
        ],
        verdict=SavedVerdict(
            cause=verdict.cause, excused=verdict.excused, **{n: getattr(verdict, f"_{n}") for n in _VERDICT}
        ),
        move=None if gang._move is None else _save_move(gang._move),
        **{name: getattr(gang, f"_{name}") for name in _GANG},
    )


def load(saved: SavedGang, *, machine_of: Callable[[str], str], grace_s: float) -> Gang:
    """Returns a gang in the saved state; ``machine_of`` and ``grace_s`` as in ``Gang``."""
    action = StartJob(id=-1, job=saved.job, attempt=saved.attempt, placement=saved.placement)
    gang = Gang(action, saved.launch, machine_of=machine_of, grace_s=grace_s)
    gang.ended = saved.ended
    for name in _GANG:
        setattr(gang, f"_{name}", getattr(saved, name))
    verdict = gang._verdict
    verdict.cause, verdict.excused = saved.verdict.cause, saved.verdict.excused
    for name in _VERDICT:
        setattr(verdict, f"_{name}", getattr(saved.verdict, name))
    gang._known = {
        r.name: GangReplica(name=r.name, number=r.number, seat=r.seat, machine=r.machine, counts=r.counts)
        for r in saved.known
    }
    gang._replicas = [gang._known[name] for name in saved.replicas]
    gang._move = None if saved.move is None else _load_move(saved.move, gang._known, grace_s)
    return gang


def _save_move(move: InPlaceResize) -> SavedResize:
    return SavedResize(
        stage=move.stage,
        generation=move.generation,
        staying=_names(move.staying),
        leaving=_names(move.leaving),
        joining=_names(move.joining),
        nodes=move.nodes,
        ways=[_names(way) for way in move._ways],
        **{name: getattr(move, f"_{name}") for name in _MOVE},
    )


def _load_move(saved: SavedResize, known: dict[str, GangReplica], grace_s: float) -> InPlaceResize:
    def found(names: Sequence[str]) -> list[GangReplica]:
        return [known[name] for name in names]

    staying, leaving = found(saved.staying), found(saved.leaving)
    move = InPlaceResize(
        saved.generation, staying=staying, leaving=leaving, nodes=saved.nodes, grace_s=grace_s, now=0.0
    )
    move.stage, move.joining = saved.stage, found(saved.joining)
    move._ways = [found(way) for way in saved.ways]
    for name in _MOVE:
        setattr(move, f"_{name}", getattr(saved, name))
    return move


def _names(replicas: Sequence[GangReplica]) -> list[str]:
    return [replica.name for replica in replicas]

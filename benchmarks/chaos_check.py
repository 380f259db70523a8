"""After chaos: what the log says against what the replicas wrote down themselves."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.chaos_user import User, lives_of
from benchmarks.chaos_world import GPUS, World
from coadapt.errors import CoadaptError
from coadapt.executors.node.keeper_shutdown import is_locked, leftovers, tokens_of
from coadapt.executors.node.processes import started_ticks
from coadapt.model import DECISIONS, AnyEvent, JobSubmitted, Record, decode, encode
from coadapt.model.snapshot import ENDED, Phase
from coadapt.runtime.controller import scheduler_of
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.store.row import decode_row
from coadapt.wire.serve_options import ServeOptions


class Lived(NamedTuple):
    """One replica, by its own account."""

    job: str
    #: Attempt and, within it, restart: of two lives of a job one is over before the next begins.
    life: tuple[int, int]
    #: Never used again within an attempt: two processes of one name are one start carried out twice.
    member: str
    rank: int
    size: int
    node: str
    pid: int
    token: str
    start: float
    #: The last thing it wrote.
    last: float
    whats: tuple[str, ...]
    #: Number of its home: a restored one uses numbers of attempts again that its former one had used after the backup.
    home: int = 0


def check(world: World, user: User) -> dict[str, Any]:
    """Counts of everything that must not be, each with what it was; then everything is ended."""
    records, snapshot = _log(world)
    lived = read_lives(world)
    state = SchedulerState()
    for record in records:
        state.apply(record)
    wrong: dict[str, list[str]] = {
        "jobs not accounted for exactly once": _accounts(
            user, records, state, lived, present=len(world.former)
        ),
        "ran twice at once": twice(lived),
        "GPUs given away twice": doubled(lived),
        "states that differ": _states(world, user, records, state, snapshot),
        "decisions not as recorded": replay(world.home.read_options(), _stored(world)),
        "alive after their end": _alive(lived) + daemons(world),
    }
    said = world.down()
    left: dict[int, str] = {}
    for home in (*world.former, world.home):
        left |= leftovers(tokens_of(home.keeper), home.keeper)
    wrong["orphans"] = [f"process {pid}" for pid in left] + [line for _, line in world.processes()]
    wrong["orphans"] += daemons(world)
    if said:
        wrong["orphans"].append(f"down: {said}")
    return {
        "wrong": wrong,
        "jobs": len(user.asked),
        "replicas": len(lived),
        "daemons": sum("daemon" in each.whats for each in lived),
        "attempts": len({(each.job, each.life) for each in lived}),
        "records": len(records),
        "controllers": sum(type(record.event).__name__ == "ControllerStarted" for record in records),
        "phases": dict(Counter(job.phase.value for job in state.jobs.values())),
    }


def read_lives(world: World) -> list[Lived]:
    """All replicas; a last line that is not whole is what a kill left of it."""
    found = []
    numbers = range(len(world.former))
    paths = [(number, path) for number in numbers for path in lives_of(world, number)]
    for number, path in [*paths, *((len(world.former), path) for path in lives_of(world))]:
        lines = []
        for text in path.read_text().split("\n"):
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
        if lines:
            first = lines[0]
            found.append(
                Lived(
                    job=first["job"],
                    life=(first["attempt"], first["restart"]),
                    member=first["member"],
                    rank=first["rank"],
                    size=first["size"],
                    node=first["node"],
                    pid=first["pid"],
                    token=first["token"],
                    start=first["at"],
                    last=max(line["at"] for line in lines),
                    whats=tuple(line["what"] for line in lines),
                    home=number,
                )
            )
    return found


def _log(world: World) -> tuple[list[Record], tuple[int, bytes] | None]:
    with closing(open_store(world.home.store(world.home.read_options())).log()) as log:
        return list(log.read()), log.newest_snapshot()


def daemons(world: World) -> list[str]:
    """Daemons of replicas that live, by their locks."""
    found = (world.path / "daemons").iterdir() if (world.path / "daemons").exists() else ()
    return [f"daemon of {path.name}" for path in found if is_locked(path)]


def _stored(world: World) -> list[tuple[int, bytes]]:
    if world.postgres is None:
        return stored(world.home)
    import psycopg

    with psycopg.connect(world.postgres.url) as store:
        rows = store.execute('SELECT seq, data FROM "coadapt"."log" ORDER BY seq').fetchall()
    return [(int(seq), encode(decode_row(bytes(data)))) for seq, data in rows]


def stored(home: Home) -> list[tuple[int, bytes]]:
    """The log as it was written."""
    with closing(sqlite3.connect(home.path / "store.db")) as store:
        return [
            (int(seq), encode(decode_row(bytes(data))))
            for seq, data in store.execute("SELECT seq, data FROM log ORDER BY seq")
        ]


def _accounts(
    user: User, records: list[Record], state: SchedulerState, lived: list[Lived], *, present: int
) -> list[str]:
    # one and the same submission may be recorded twice, where a controller died before it acknowledged it; it counts once
    named = {(r.event.spec.name, r.event.job) for r in records if isinstance(r.event, JobSubmitted)}
    submitted = Counter(name for name, _ in named)
    ended = whole(lived)
    lived = [each for each in lived if each.home == present]
    ran = {each.job for each in lived}
    wrong = []
    for asked in user.asked:
        job = state.jobs.get(asked.job)
        if job is None or submitted[asked.spec.name] != 1 or asked.others:
            wrong.append(f"{asked.job}: submitted {submitted[asked.spec.name]} times, also {asked.others}")
        elif job.phase not in ENDED:
            wrong.append(f"{asked.job}: {job.phase.value}")
        elif job.phase is Phase.SUCCEEDED and not asked.endless and (asked.job not in ended or asked.fails):
            wrong.append(f"{asked.job}: succeeded, but its replicas did not come to their end")
        elif job.phase is Phase.CANCELLED and not asked.cancelled:
            wrong.append(f"{asked.job}: cancelled, but no user cancelled it")
        elif job.phase is Phase.FAILED and not (asked.fails or asked.killed):
            kind = "" if job.failure is None else f"{job.failure.kind}: {job.failure.reason}"
            wrong.append(f"{asked.job}: failed without an injected fault ({kind})")
    strangers = set(state.jobs) - {asked.job for asked in user.asked}
    unknown = {each.job for each in lived if each.job not in state.jobs}
    newer = {
        each.job for each in lived if each.job in state.jobs and each.life[0] > state.jobs[each.job].attempt
    }
    wrong += [f"{job}: not submitted by any user" for job in sorted(strangers)]
    wrong += [f"{job}: ran, and the log does not know it" for job in sorted((unknown | newer) & ran)]
    return wrong


def whole(lived: list[Lived]) -> set[str]:
    """Jobs of which all replicas of one life came to their end; in one that was resized in place, those that were left."""
    ends: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
    sizes: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
    for each in lived:
        sizes[each.job, (each.home, *each.life)].add(each.size)
        if "end" in each.whats:
            ends[each.job, (each.home, *each.life)].add(each.rank)
    return {
        job
        for (job, life), known in sizes.items()
        if len(ends[job, life]) >= (min(known) if len(known) == 1 else 1)
    }


def twice(lived: list[Lived]) -> list[str]:
    """Lives of one job that overlap, by their records or by what replicas found themselves, and replicas that were started twice."""
    wrong = [f"{each.job} {each.life} found a twin" for each in lived if "twin" in each.whats]
    lives: dict[str, dict[tuple[int, ...], tuple[float, float]]] = defaultdict(dict)
    for each in lived:
        life = (each.home, *each.life)
        start, last = lives[each.job].get(life, (each.start, each.last))
        lives[each.job][life] = (min(start, each.start), max(last, each.last))
    for job, spans in lives.items():
        ordered = sorted(spans.items())
        for (one, (_, last)), (other, (start, _)) in pairwise(ordered):
            if start <= last:
                wrong.append(f"{job}: {other} began {last - start:.3f} s before {one} was over")
    members = Counter((each.job, (each.home, *each.life), each.member) for each in lived)
    return wrong + [
        f"{job} {life}: {count} processes called {member}"
        for (job, life, member), count in members.items()
        if count > 1
    ]


def doubled(lived: list[Lived]) -> list[str]:
    """Nodes that ever had more replicas than GPUs, by the same two proofs."""
    wrong = [
        f"{each.job} {each.life} found no free GPU on {each.node}"
        for each in lived
        if "doubled" in each.whats
    ]
    for node in sorted({each.node for each in lived}):
        moments = sorted(
            moment for each in lived if each.node == node for moment in ((each.start, 1), (each.last, -1))
        )
        on = most = 0
        for _, change in moments:
            on += change
            most = max(most, on)
        if most > GPUS:
            wrong.append(f"{node}: {most} replicas at once")
    return wrong


def _states(
    world: World, user: User, records: list[Record], state: SchedulerState, snapshot: tuple[int, bytes] | None
) -> list[str]:
    wrong = []
    try:
        state.validate()
    except (CoadaptError, AssertionError) as error:
        wrong.append(f"not valid: {error}")
    whole = saved_state.save(state)
    cuts = [(len(records) // 3, None), (2 * len(records) // 3, None)]
    for cut, data in [*cuts, *([(snapshot[0] + 1, snapshot[1])] if snapshot else [])]:
        if data is None:
            part = SchedulerState()
            for record in records[:cut]:
                part.apply(record)
            data = saved_state.save(part)
        again = saved_state.load(data)
        for record in records[cut:]:
            again.apply(record)
        if saved_state.save(again) != whole:
            wrong.append(f"saved after {cut} records and the rest folded, it is another state")
    shown = user.ask(lambda client: {line.job: line.state for line in client.all_jobs()})
    if shown != {job.id: job.shown_state.value for job in state.jobs.values()}:
        wrong.append("the API shows other states than the log")
    return wrong


def replay(options: ServeOptions, rows: Iterable[tuple[int, bytes]]) -> list[str]:
    """Facts into a new scheduler; where its answers are not what is stored, byte for byte."""
    scheduler = scheduler_of(options)
    expected: list[AnyEvent] = []
    for seq, data in rows:
        record = decode(data)
        if not isinstance(record.event, DECISIONS):
            if expected:
                return [f"before record {seq}: {type(expected[0]).__name__} is not recorded"]
            expected = scheduler.handle(record)
        elif not expected:
            return [f"record {seq}: decided in the past, not now"]
        else:
            # as a reader has it: whole numbers of reasons are floats there
            mine = encode(decode(encode(Record(seq=seq, at=record.at, event=expected.pop(0)))))
            if mine != data:
                return [f"record {seq}: {data[:300]!r} is {mine[:300]!r} now"]
    return ["at the end of the log"] if expected else []


def _alive(lived: list[Lived]) -> list[str]:
    tokens = {each.token for each in lived}
    left = leftovers(tokens)
    return [f"process {pid} ({started_ticks(pid)})" for pid in left]

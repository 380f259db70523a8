"""Joined machines, Slurm and Ray at their worst, and their latencies: exit code 1 if a must is missed.

    python -m benchmarks.engines [--engine NAME] [--only SECTION] [--rounds N]

Every figure is of a real engine on this machine with counted GPUs (``benchmarks.engines_worlds``), and is saved in cells, so that a run
may be stopped and taken up again. An engine that cannot run here is named, and misses nothing. Latencies mean something on an idle
machine only: the load is beside each.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tests.engines.hub_bench import HubBench
from tests.engines.lives import HEARTBEAT, a_beating_job, lives, overlaps
from tests.engines.machines import agents_of, joined
from tests.waiting import until

from benchmarks.cells import cell, source_hash
from benchmarks.engines_chaos import GRACE_S, LEASE_S, a_round
from benchmarks.engines_sessions import many_sessions
from benchmarks.engines_worlds import WORLDS, World
from benchmarks.measure import Row, show
from benchmarks.smoke import either, few
from coadapt.executors.engines._base import Unit, unit_name
from coadapt.model import JobStarted, JobStopped, Placement, Slot, StartJob, StopJob

_SOURCES = ("executors/**/*.py",)
_SETTING = ("engines.py", "engines_chaos.py", "engines_sessions.py", "engines_worlds.py")
#: Kills in all rounds: of controllers and agents, and of the engine's own daemons. A round has a tenth of them.
_ROUNDS, _OURS, _THEIRS = 10, 3, 1
#: Submit -> first replica in seconds beyond the script's own start: must and aim.
_START_S = {"joined": (3.0, 1.5), "slurm": (3.0, 1.5), "kubernetes": (3.0, 1.5), "ray": (8.0, 5.0)}


def chaos(world: World, rounds: int) -> list[Row]:
    """Kills; counts overlaps, ends that are not one, and orphans."""
    kinds = ["controller", "agent"] * either(1, _OURS) + list(few(world.daemons)) * _THEIRS
    found = []
    for number in range(rounds):
        last = number == rounds - 1
        compute = partial(a_round, world, number, kinds, last=last)
        found.append(_saved(world, "chaos", compute, round=number, kinds=kinds, last=last))
    kills: Counter[str] = Counter()
    for each in found:
        kills.update(each["kills"])
    note = f"{', '.join(f'{count} {name}' for name, count in kills.items())} killed; {sum(e['attempts'] for e in found)} attempts"
    return [
        Row(f"{world.name}: {what}", float(sum(each[key] for each in found)), 0.0, note=note)
        for what, key in (
            ("two attempts of a job at once", "overlaps"),
            ("ends lost or told twice", "lost_ends"),
            ("orphans after down", "orphans"),
        )
    ]


def latency(world: World, rounds: int) -> list[Row]:
    """Submit to first replica on a node without an agent, and stop to confirmed gone."""
    found = _saved(world, "latency", lambda: _latency(world, either(1, 5)))
    must, aim = _START_S[world.name]
    note = f"median of {len(found['start'])}, worst {max(found['start']):.2f} s, script {found['own']:.2f} s; load {found['load']:.1f}"
    stops = f"median of {len(found['stop'])}, worst {max(found['stop']):.2f} s; load {found['load']:.1f}"
    return [
        Row(
            f"{world.name}: submit -> first replica", statistics.median(found["start"]), must, aim, " s", note
        ),
        Row(
            f"{world.name}: stop -> confirmed gone",
            statistics.median(found["stop"]),
            GRACE_S + 2,
            None,
            " s",
            stops,
        ),
    ]


def _latency(world: World, repeats: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="coadapt-engines-") as scratch,
        world.started(Path(scratch) / "engine"),
    ):
        beats = Path(scratch) / "beats"
        own = _own_start(Path(scratch))
        # room that is not used is given back at once: each start needs new room
        with closing(world.bench(Path(scratch), lease_s=60.0, grace_s=GRACE_S, idle_s=0.5)) as bench:
            starts, stops = [], []
            for number in range(1, repeats + 1):
                began = time.monotonic()
                _start(bench, beats, "a", number, number)
                until(lambda n=number: any(life.attempt == n for life in lives(beats, "a")))  # type: ignore[misc]
                starts.append(
                    min(life.first for life in lives(beats, "a") if life.attempt == number) - began - own
                )
                _heard(bench, JobStarted)
                began = time.monotonic()
                bench.executor.apply([StopJob(id=1000 + number, job="a", attempt=number, why="pause")])
                _heard(bench, JobStopped)
                stops.append(time.monotonic() - began)
                if world.head:
                    until(lambda: not agents_of(bench.home).agents)
                    world.settle()
            return {"start": starts, "stop": stops, "own": own, "load": os.getloadavg()[0]}


def frozen(world: World, rounds: int) -> list[Row]:
    """The engine's head is frozen for a minute while a job runs."""
    if not world.head:
        return []
    found = _saved(world, "frozen", lambda: _frozen(world, either(2.0, 60.0)))
    note = f"{world.head} frozen for {found['seconds']:.0f} s"
    return [
        Row(f"{world.name}: jobs lost while the engine is frozen", found["lost"], 0.0, note=note),
        Row(
            f"{world.name}: stops and starts that went on meanwhile",
            found["went_on"],
            2.0,
            note=note,
            at_least=True,
        ),
    ]


def _frozen(world: World, seconds: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="coadapt-engines-") as scratch,
        world.started(Path(scratch) / "engine"),
    ):
        beats = Path(scratch) / "beats"
        with closing(world.bench(Path(scratch), lease_s=LEASE_S, grace_s=GRACE_S)) as bench:
            for job in ("a", "b"):
                _start(bench, beats, job, 1 if job == "a" else 2, 1)
                _heard(bench, JobStarted)
            world.signal_head(signal.SIGSTOP)
            try:
                ends = time.monotonic() + seconds
                bench.executor.apply([StopJob(id=3, job="b", attempt=1, why="pause")])
                went_on = isinstance(bench.next(), JobStopped)
                _start(bench, beats, "b", 4, 2)
                again = isinstance(bench.next(), JobStarted)
                lost = 0
                while time.monotonic() < ends:
                    lost += len(bench.rest())
                    time.sleep(0.5)
                alive = [life.alive for life in lives(beats, "a")]
            finally:
                world.signal_head(signal.SIGCONT)
            lost += alive != [True]
            until(lambda: not agents_of(bench.home).engine_trouble, lambda: agents_of(bench.home))
            return {"lost": float(lost), "went_on": float(went_on + again), "seconds": seconds}


def partition(world: World, rounds: int) -> list[Row]:
    """Nobody answers agents for lease + 30 s."""
    found = _saved(world, "partition", lambda: _partition(world, either(LEASE_S + 4.0, LEASE_S + 30.0)))
    limit_s = LEASE_S + GRACE_S + 5
    return [
        Row(
            f"{world.name}: cut off -> replicas gone",
            found["gone_s"],
            limit_s,
            None,
            " s",
            f"load {found['load']:.1f}",
        ),
        Row(f"{world.name}: ends told too early, overlaps after a cut", found["overlaps"], 0.0),
        Row(f"{world.name}: jobs lost by a cut", found["lost"], 0.0),
    ]


def _partition(world: World, seconds: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="coadapt-engines-") as scratch,
        world.started(Path(scratch) / "engine"),
    ):
        beats = Path(scratch) / "beats"
        with closing(world.bench(Path(scratch), lease_s=LEASE_S, grace_s=GRACE_S)) as bench:
            # a replica that does not heed SIGTERM
            _start(bench, beats, "a", 1, 1, STUBBORN="1")
            _heard(bench, JobStarted)
            until(lambda: bool(lives(beats, "a")))
            cut_at = time.monotonic()
            bench.relay.cut.set()
            # in a unit the engine must agree that it has ended, or its next agent say so: that comes after the cut
            told_at: float | None = None
            while time.monotonic() < cut_at + seconds:
                bench._take(0.2)
                if bench._waiting and told_at is None:
                    told_at, gone_at = time.monotonic(), max(life.last for life in lives(beats, "a"))
            bench.relay.cut.clear()
            _heard(bench, JobStopped)
            if told_at is None:
                told_at, gone_at = time.monotonic(), max(life.last for life in lives(beats, "a"))
            if not world.head:
                until(lambda: "n1" in joined(bench.home), lambda: agents_of(bench.home))
            _start(bench, beats, "a", 2, 2)
            _heard(bench, JobStarted)
            until(lambda: any(life.attempt == 2 for life in lives(beats, "a")), lambda: agents_of(bench.home))
            gone_s = max(life.last for life in lives(beats, "a") if life.attempt == 1) - cut_at
            lost = 0.0 if any(life.attempt == 2 and life.alive for life in lives(beats, "a")) else 1.0
            early = float(
                gone_at > told_at or any(life.alive for life in lives(beats, "a") if life.attempt == 1)
            )
            return {
                "gone_s": gone_s,
                "overlaps": float(len(overlaps(beats, "a"))) + early,
                "lost": lost,
                "load": os.getloadavg()[0],
            }


def calls(world: World, rounds: int) -> list[Row]:
    """Requests to the engine at rest, and for a claim and a release."""
    if not world.head:
        return []
    found = _saved(world, "calls", lambda: _calls(world, either(3.0, 30.0)))
    return [
        Row(
            f"{world.name}: requests a second at rest",
            found["rest"],
            1.0,
            note="units and nodes of a thread at rest",
        ),
        Row(f"{world.name}: requests for a claim", found["claim"], 2.0),
        Row(f"{world.name}: requests for a release", found["release"], 2.0),
    ]


def _calls(world: World, seconds: float) -> dict[str, Any]:
    from coadapt.executors.hub.engine_thread import EngineThread

    with (
        tempfile.TemporaryDirectory(prefix="coadapt-engines-") as scratch,
        world.started(Path(scratch) / "engine"),
        world.counted() as count,
    ):
        engine = world.adapter()
        node = engine.nodes()[0].node
        name = unit_name("benchmark", node.name, 1)
        variables = {"COADAPT_UNIT": name, "COADAPT_URL": "http://127.0.0.1:9", "COADAPT_NODE_TOKEN": "x"}
        unit = Unit(name=name, node=node, environment={**variables, "COADAPT_NODE": node.name})
        before = count()
        engine.claim(unit)
        claim = count() - before
        until(lambda: [each.state for each in engine.units()] == ["running"], engine.units)
        before = count()
        engine.release([name])
        release = count() - before
        until(lambda: all(each.state == "ended" for each in engine.units()), engine.units)
        thread = EngineThread(engine)
        thread.start(lambda: None)
        until(lambda: thread.view is not None, "the engine's view")
        before, began = count(), time.monotonic()
        time.sleep(seconds)  # what is measured
        rest = (count() - before) / (time.monotonic() - began)
        thread.close()
        return {"claim": claim, "release": release, "rest": rest}


def sessions(world: World, rounds: int) -> list[Row]:
    """Agents without trainers on one hub: its load, and how soon another hub has them all."""
    if world.name != "joined":
        return []  # the hub is the same for all
    number = either(10, 200)
    found = _saved(world, "sessions", lambda: many_sessions(number, either(2.0, 30.0)), number=number)
    note = f"{number} agents, lease 60 s; load {found['load']:.1f}"
    return [
        Row("hub: CPU of a core", found["cpu"], 1.0, None, "", note),
        Row("hub: memory", found["rss_mb"], 500.0, None, " MB", note),
        Row("hub killed -> all agents heard by the next", found["adopted_s"], 10.0, 3.0, " s", note),
    ]


SECTIONS: dict[str, Callable[[World, int], list[Row]]] = {
    "chaos": chaos,
    "frozen": frozen,
    "partition": partition,
    "calls": calls,
    "latency": latency,
    "sessions": sessions,
}


def _saved(
    world: World, what: str, compute: Callable[[], dict[str, Any]], **arguments: Any
) -> dict[str, Any]:
    sources = source_hash(_SOURCES, setting=_SETTING)
    return cell(f"engines-{what}", {"engine": world.name, **arguments}, sources, compute)


def _start(bench: HubBench, beats: Path, job: str, number: int, attempt: int, **envs: str) -> None:
    bench.specs[job] = a_beating_job(job, beats, **envs)
    placement = Placement(slots=(Slot(node="n1", replicas=1, gpu_type="t4"),))
    bench.executor.apply([StartJob(id=number, job=job, attempt=attempt, placement=placement)])


def _heard(bench: HubBench, kind: Any) -> Any:
    event = bench.next()
    assert isinstance(event, kind), event
    return event


def _own_start(directory: Path) -> float:
    """Seconds from the start of the script to its first line."""
    place = directory / "own"
    place.mkdir()
    times = []
    for number in range(3):
        began = time.monotonic()
        environment = {**os.environ, "COADAPT_JOB": "own", "COADAPT_ATTEMPT": str(number), "RANK": "0"}
        script = subprocess.Popen([sys.executable, str(HEARTBEAT), str(place)], env=environment)
        until(lambda n=number: any(life.attempt == n for life in lives(place, "own")))  # type: ignore[misc]
        script.kill()
        script.wait()
        times.append(next(life.first for life in lives(place, "own") if life.attempt == number) - began)
    return statistics.median(times)


def main() -> int:
    """Runs the sections on the engines; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=list(WORLDS), action="append", help="an engine; may be repeated")
    parser.add_argument("--only", choices=list(SECTIONS), action="append", help="a section; may be repeated")
    parser.add_argument("--rounds", type=int, default=either(1, _ROUNDS), help="rounds of chaos")
    asked = parser.parse_args()
    met, absent = True, []
    for name in asked.engine or few(list(WORLDS)):
        world = WORLDS[name]()
        if reason := world.why_not():
            absent.append(f"{name} ({reason})")
            continue
        for section in asked.only or few(list(SECTIONS), 2):
            rows = SECTIONS[section](world, asked.rounds)
            met = (show(f"{section} on {name}", rows) if rows else True) and met
    if absent:
        print(f"\ndid not run: {', '.join(absent)}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())

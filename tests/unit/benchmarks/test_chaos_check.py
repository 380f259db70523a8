"""What chaos would have to find: each thing that must not be, made up, is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from benchmarks.chaos_check import Lived, doubled, replay, twice, whole

from coadapt.model import (
    ActionsIssued,
    ControllerStarted,
    JobSubmitted,
    NodeJoined,
    Record,
    Woke,
    decode,
    encode,
)
from coadapt.runtime.controller import scheduler_of
from coadapt.wire.serve_options import ServeOptions
from tests.builders import a_cluster, a_job
from tests.waiting import until


def a_life(**changes: object) -> Lived:
    one = Lived(
        job="j-1",
        life=(1, 0),
        member="m0",
        rank=0,
        size=1,
        node="n0",
        pid=1,
        token="t",
        start=1.0,
        last=2.0,
        whats=("start", "end"),
    )
    return one._replace(**changes)  # type: ignore[arg-type]


def test_lives_one_after_the_other_are_right() -> None:
    lives = [a_life(), a_life(life=(2, 0), start=2.1, last=3.0)]
    assert twice(lives) == []
    assert doubled(lives) == []


def test_lives_that_overlap_are_found() -> None:
    (found,) = twice([a_life(), a_life(life=(2, 0), start=1.9, last=3.0)])
    assert "j-1" in found


def test_restart_within_an_attempt_that_overlaps_is_found() -> None:
    assert twice([a_life(), a_life(life=(1, 1), start=1.9, last=3.0)])


def test_replicas_of_one_life_may_overlap() -> None:
    assert twice([a_life(size=2), a_life(size=2, rank=1, member="m1")]) == []


def test_replica_that_was_started_twice_within_one_life_is_found() -> None:
    (found,) = twice([a_life(), a_life(pid=2, start=1.1)])
    assert "2 processes called m0" in found


def test_what_a_replica_found_itself_is_told() -> None:
    assert twice([a_life(whats=("start", "twin"))])
    assert doubled([a_life(whats=("start", "doubled"))])


def test_more_replicas_on_a_node_than_gpus_are_found() -> None:
    lives = [a_life(job=f"j-{n}") for n in range(3)]
    assert doubled(lives) == ["n0: 3 replicas at once"]
    assert doubled(lives[:2]) == []


def test_gpu_that_is_taken_when_it_gets_free_is_not_double() -> None:
    lives = [a_life(job="j-1"), a_life(job="j-2"), a_life(job="j-3", start=2.0, last=3.0)]
    assert doubled(lives) == []


@pytest.mark.parametrize(("ended", "is_whole"), [((0, 1), True), ((0,), False)])
def test_job_is_whole_when_all_its_replicas_came_to_their_end(ended: tuple[int, ...], is_whole: bool) -> None:
    lives = [
        a_life(rank=rank, size=2, whats=("start", "end") if rank in ended else ("start",))
        for rank in range(2)
    ]
    assert whole(lives) == ({"j-1"} if is_whole else set())


def a_log() -> list[tuple[int, bytes]]:
    scheduler, rows = scheduler_of(ServeOptions(policy="fifo")), list[bytes]()
    facts = [
        ControllerStarted(version="0"),
        *(NodeJoined(node=node) for node in a_cluster("1x2").nodes),
        JobSubmitted(job="a", spec=a_job(1)),
        Woke(),
    ]
    for at, fact in enumerate(facts):
        record = Record(seq=len(rows), at=float(at), event=fact)
        rows.append(encode(record))
        rows += [
            encode(Record(seq=len(rows) + n, at=record.at, event=e))
            for n, e in enumerate(scheduler.handle(record))
        ]
    return list(enumerate(rows))


def test_replay_of_a_true_log_finds_nothing() -> None:
    rows = a_log()
    assert any(isinstance(decode(data).event, ActionsIssued) for _, data in rows)
    assert replay(ServeOptions(policy="fifo"), rows) == []


def test_replay_finds_a_decision_that_was_changed_left_out_or_made_up() -> None:
    rows = a_log()
    place = next(seq for seq, data in rows if isinstance(decode(data).event, ActionsIssued))
    plain = json.loads(rows[place][1])
    plain["event"]["decision"] += 1
    changed = [*rows[:place], (place, msgspec.json.encode(plain)), *rows[place + 1 :]]
    options = ServeOptions(policy="fifo")
    assert replay(options, changed)
    assert replay(options, rows[:place])
    assert replay(options, [*rows, rows[place]])


def start(directory: Path, attempt: int) -> subprocess.Popen[bytes]:
    script = Path(__file__).parents[3] / "benchmarks" / "chaos_replica.py"
    envs = {
        "COADAPT_JOB": "j-1",
        "COADAPT_ATTEMPT": str(attempt),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "COADAPT_MEMBER": "m0",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "NODE": "n0",
        "COADAPT_TOKEN": "t",
    }
    command = [sys.executable, "-I", "-S", str(script), str(directory), "1", "600"]
    return subprocess.Popen(command, env={**os.environ, **envs})


def test_one_start_carried_out_twice_is_found_by_the_second_replica(tmp_path: Path) -> None:
    def notes(process: subprocess.Popen[bytes]) -> str:
        (path,) = [*(tmp_path / "lives").glob(f"j-1.1.*.{process.pid}")] or [None]
        return "" if path is None else path.read_text()

    with start(tmp_path, 1) as first:
        try:
            until(lambda: "beat" in notes(first))
            with start(tmp_path, 1) as second:
                try:
                    until(lambda: "twin" in notes(second))
                finally:
                    second.kill()
        finally:
            first.kill()
    assert "twin" not in notes(first)


def test_chaos_replica_writes_its_life_and_finds_its_twin(tmp_path: Path) -> None:

    def notes(attempt: int) -> list[str]:
        (path,) = (tmp_path / "lives").glob(f"j-1.{attempt}.*") if (tmp_path / "lives").exists() else (None,)
        return [] if path is None else [json.loads(line)["what"] for line in path.read_text().splitlines()]

    def until_it_beats(attempt: int) -> None:
        until(lambda: [*(tmp_path / "lives").glob(f"j-1.{attempt}.*")] and "beat" in notes(attempt))

    first = start(tmp_path, 1)
    try:
        until_it_beats(1)
        second = start(tmp_path, 2)
        try:
            until_it_beats(2)
        finally:
            second.kill()
            second.wait()
    finally:
        first.kill()
        first.wait()
    assert notes(1)[:2] == ["start", "seat"]
    assert {"twin", "doubled"} <= set(notes(2))

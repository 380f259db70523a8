"""Waiting for the lease: what is waited for, and a holder that blocks the store."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from coadapt.executors.node.processes import this_process
from coadapt.live import standby
from coadapt.live.child_lives import Hang, Lives, common_hang
from coadapt.live.standby import wait_for_lease
from coadapt.store import open_store

#: Takes the lease and stands still inside a transaction.
BLOCKS = """
import sys, time
from coadapt.executors.node.processes import this_process
from coadapt.store import open_store
log = open_store(sys.argv[1]).log()
log.acquire(this_process(), 0.0, time.time())
with log._database.transaction():
    print("ready", flush=True)
    time.sleep(3600)
"""


def test_lease_that_nobody_has_is_there_to_be_taken(tmp_path: Path) -> None:
    assert wait_for_lease(open_store(tmp_path / "store.db"), lambda: None, lambda: False)


def test_waiting_is_progress_and_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_LOOK_S", 0.0)
    store = open_store(tmp_path / "store.db")
    looks: list[int] = []
    with closing(store.log()) as log:
        log.acquire(this_process(), 60.0, time.time())
        assert not wait_for_lease(store, lambda: looks.append(1), lambda: len(looks) >= 5)
    assert len(looks) == 5


def test_holder_that_is_alive_and_blocks_the_store_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "LEASE_S", 0.0)
    monkeypatch.setattr(standby, "_BLOCKED_S", 0.1)
    where = tmp_path / "store.db"
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKS, str(where)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        assert wait_for_lease(open_store(where), lambda: None, lambda: False)
        assert process.wait() == -signal.SIGKILL
    assert open_store(where).writable(1.0)


def test_holder_that_only_hangs_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "LEASE_S", -1.0)
    store = open_store(tmp_path / "store.db")
    with closing(store.log()) as log:
        log.acquire(this_process(), 0.0, time.time())
        assert wait_for_lease(store, lambda: None, lambda: False)


def test_hangs_of_both_controllers_on_the_same_job_are_counted_together() -> None:
    assert common_hang({}) is None
    lives = {
        "controller": Lives(hang=Hang(stage="record", job="a-1", times=1, at=1.0)),
        "standby": Lives(hang=Hang(stage="record", job="a-1", times=1, at=2.0)),
        "api": Lives(),
    }
    assert common_hang(lives) == Hang(stage="record", job="a-1", times=2, at=2.0)
    lives["standby"] = Lives(hang=Hang(stage="record", job="b-2", times=1, at=2.0))
    assert common_hang(lives) == Hang(stage="record", job="b-2", times=1, at=2.0)

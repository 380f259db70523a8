"""A process of an attempt: whether it ended by itself or because it was asked to."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coadapt.executors.node.replica import Child
from tests.waiting import until

READY = "echo ready; while :; do sleep 0.05; done"
SAYS = """echo 'COADAPT {"job": "a", "done": true}'"""

Start = Callable[[str], Child]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def started(script: str) -> Child:
        child = Child("0", tmp_path)
        child.start(("sh", "-c", script), dict(os.environ))
        return child

    return started


def ended(child: Child) -> int:
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child.wait()


def test_child_that_exits_after_the_signal_was_asked(start: Start) -> None:
    child = start(f"trap 'exit 0' TERM; {READY}")
    until(lambda: child.out.read_text() == "ready\n")
    child.ask(signal.SIGTERM)
    assert ended(child) == 0
    assert child.asked
    assert not child.says_done()


def test_child_that_had_exited_before_the_signal_was_not_asked(start: Start) -> None:
    child = start("exit 0")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # nobody has noticed it yet
    child.ask(signal.SIGTERM)
    assert child.wait() == 0
    assert not child.asked


@pytest.mark.parametrize(
    ("script", "done"),
    [
        (SAYS, True),
        (f"{SAYS}; echo a line after it", True),
        ("""echo 'COADAPT {"done": false}'""", False),
        ("""echo 'COADAPT {"done": 1}'""", False),
        ("""echo 'COADAPT [done]'; echo 'COADAPT {'; echo 'COADAPT "done"'""", False),
        ("""echo 'x COADAPT {"done": true}'""", False),
        (f"{SAYS} >&2", False),
        ("", False),
    ],
)
def test_child_says_that_it_is_done_in_a_line_of_its_output(start: Start, script: str, done: bool) -> None:
    child = start(script)
    ended(child)
    assert child.says_done() is done


def test_word_of_an_earlier_process_with_the_same_output_does_not_count(start: Start) -> None:
    ended(start(SAYS))
    again = start("exit 0")
    ended(again)
    assert not again.says_done()


def test_word_is_found_behind_a_long_output(start: Start) -> None:
    child = start(
        f'{sys.executable} -c \'print("x" * 79 + chr(10), end="") if 1 else 0; print(("y" * 79 + chr(10)) * 20000)\'; {SAYS}'
    )
    ended(child)
    assert child.says_done()

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coadapt.executors.node import hang_stacks
from tests.waiting import until

ANSWERS = "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1); print(1, flush=True); time.sleep(600)"


def test_process_that_answers_shows_its_stack_and_lives(tmp_path: Path) -> None:
    with (
        (tmp_path / "err").open("wb") as err,
        subprocess.Popen(
            [sys.executable, "-S", "-c", ANSWERS], stdout=subprocess.PIPE, stderr=err
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        assert hang_stacks.ask([process.pid]) == [process.pid]
        until(lambda: "line 1 in <module>" in (tmp_path / "err").read_text(), "no stack")
        assert process.poll() is None
        process.kill()


def test_process_that_would_die_of_the_signal_is_not_asked() -> None:
    with subprocess.Popen(["sleep", "600.25"]) as process:
        assert hang_stacks.ask([process.pid]) == []
        told = hang_stacks.seen_from_outside([process.pid])
        assert f"process {process.pid} " in told
        assert "600.25" not in told  # arguments may be secrets
        assert f"thread {process.pid} " in told
        process.kill()
    assert "gone" in hang_stacks.seen_from_outside([process.pid])
    assert hang_stacks.ask([process.pid]) == []


def test_head_is_short() -> None:
    assert hang_stacks.head("\n".join(["x" * 1000] * 1000), 5) == "\n".join(["x" * 300] * 5)

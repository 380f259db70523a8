"""An attempt that hangs: who can show its stack is waited for, but not for ever."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.executors.gang.replica_seats import seated
from coadapt.executors.node.devices import Taken
from coadapt.executors.node.hang_stacks import Hang
from coadapt.executors.node.processes import signal_group
from coadapt.executors.node.replica import Replica
from coadapt.wire.agent import Variable
from tests.waiting import until

#: As the child of a shell, which does not answer itself.
ANSWERS = (
    "import faulthandler, signal, time\n"
    "faulthandler.register(signal.SIGUSR1)\n"
    "def waits_for_ever():\n"
    "    print('ready', flush=True)\n"
    "    time.sleep(600)\n"
    "waits_for_ever()\n"
)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    (seat,) = seated(["n0"], "t4")
    replica = Replica(0, seat, Taken("n0"), "m0", tmp_path)
    command = ("sh", "-c", 'echo $$; "$@"; true', "sh", sys.executable, "-S", "-c", ANSWERS)
    replica.start(command, {**os.environ, Variable.TOKEN: "token-of-a-hang"})
    until(lambda: "ready" in replica.out.read_text())
    yield replica
    signal_group(replica.pid, signal.SIGKILL)
    replica.wait()


def _hang(replica: Replica) -> Hang:
    return Hang("token-of-a-hang", [replica.leader], [replica], 0.0, ranks={"m0": 0})


def test_replica_that_is_slow_to_show_its_stack_is_waited_for(tmp_path: Path, replica: Replica) -> None:
    signal_group(replica.pid, signal.SIGSTOP)
    hang = _hang(replica)
    assert not hang.over(0.5)
    assert not hang.over(5.0)  # it has not come to write anything
    assert hang.until > 5.0
    signal_group(replica.pid, signal.SIGCONT)
    until(lambda: "waits_for_ever" in replica.err.read_text())
    assert hang.over(hang.until)
    assert "in waits_for_ever" in hang.text(tmp_path)


def test_replica_that_never_shows_its_stack_is_not_waited_for_for_ever(
    tmp_path: Path, replica: Replica
) -> None:
    signal_group(replica.pid, signal.SIGSTOP)
    hang = _hang(replica)
    assert hang.over(3600.0)
    assert "waits_for_ever" not in hang.text(tmp_path)
    assert f"process {replica.pid} " in hang.text(tmp_path)

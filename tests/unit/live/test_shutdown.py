"""``down`` says that nothing is left when that is so: a process that has let go of its lock may still be there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coadapt.executors.node.keeper_shutdown import end_keeper, is_locked
from coadapt.executors.node.processes import started_ticks
from coadapt.store.home import Home
from tests.waiting import until

#: Lets go of the lock when told to, and takes a while to end.
_SLOW = """
import fcntl, os, signal, sys, time
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(f"{os.getpid()}\\n"); lock.flush()
def told(*a):
    lock.close()
    time.sleep(0.7)  # the end that takes a while
    os._exit(0)
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
time.sleep(600)
"""


def test_keeper_that_takes_a_while_to_end_is_waited_for(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.make()
    lock = home.keeper / "keeper.lock"
    process = subprocess.Popen([sys.executable, "-c", _SLOW, str(lock)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: is_locked(lock))
        assert end_keeper(home.keeper, 300.0)
        assert started_ticks(process.pid) is None
    finally:
        process.kill()
        process.communicate()

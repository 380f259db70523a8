"""A job that leaves a daemon behind: two forks, a session of its own, an empty environment.

    python hostile.py WITNESS [exit|stay] [deaf] [hopping] [moving] [late] [early]

All its processes hold the lock of WITNESS, and nothing else does: the lock is free when the last of them is gone. ``deaf``
ignores SIGTERM, ``hopping`` forks and exits all the time, ``moving`` leaves its control groups (as root), ``late``: not at once, ``early`` forks
only once, so that it stays a child of the job.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    witness, end, *modes = sys.argv[1:]
    if end == "daemon":
        daemon(witness, modes)
    lock = os.open(witness, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.set_inheritable(lock, True)
    if os.fork() == 0:
        os.setsid()
        if "early" in modes or os.fork() == 0:
            words = [sys.executable, "-S", __file__, witness, "daemon", *modes]
            os.execve(sys.executable, words, {})
        os._exit(0)
    while not os.path.exists(f"{witness}.ready"):  # noqa: PTH110 - no import that is not needed
        time.sleep(0.005)
    while end == "stay":
        time.sleep(0.05)


def daemon(witness: str, modes: list[str]) -> None:
    if "deaf" in modes:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "late" in modes:
        time.sleep(0.3)  # whoever inherits it has seen it in its groups by then
    if "moving" in modes:
        for group in Path("/sys/fs/cgroup").iterdir():
            # not the groups that account for memory: they are somebody else's
            if group.name in ("freezer", "unified"):
                (group / "cgroup.procs").write_text("0")
    Path(f"{witness}.ready").write_text(str(os.getpid()))
    while True:
        if "hopping" in modes and os.fork():
            os._exit(0)
        time.sleep(0.0005 if "hopping" in modes else 0.05)


if __name__ == "__main__":
    main()

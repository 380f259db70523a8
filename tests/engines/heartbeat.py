"""A replica that writes down when it lived: ``python heartbeat.py DIR`` appends a moment to DIR/JOB.ATTEMPT.RANK.PID, ever again.

Moments are of CLOCK_MONOTONIC, which all processes of a machine share. The replica of rank HELPER also detaches a process that does the same,
in a session of its own and without the variables by which it would be recognised.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    directory = Path(sys.argv[1])
    name = (
        sys.argv[2]
        if len(sys.argv) > 2
        else ".".join(os.environ[n] for n in ("COADAPT_JOB", "COADAPT_ATTEMPT", "RANK"))
    )
    if os.environ.get("HELPER") == os.environ.get("RANK", ""):
        subprocess.Popen(
            [sys.executable, __file__, str(directory), f"{name}.helper"],
            env={"PATH": "/usr/bin"},
            start_new_session=True,
        )
    if os.environ.get("STUBBORN") == "1" or len(sys.argv) > 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif os.environ.get("POLITE") == "1":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with (directory / f"{name}.{os.getpid()}").open("a") as file:
        while True:
            file.write(f"{time.monotonic()}\n")
            file.flush()
            time.sleep(0.02)  # its work


if __name__ == "__main__":
    main()

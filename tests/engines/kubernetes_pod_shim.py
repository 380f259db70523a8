"""A pod's container as processes: ``python kubernetes_pod_shim.py DIR COMMAND...`` runs a command as containerd's shim would.

It outlives the kubelet. SIGTERM is passed to the command alone, SIGUSR1 kills everything. When the command ends, so does all that it
started, however it was detached, as with process 1 of a container; then the exit code is in DIR/exit. Its own pid is in DIR/pid.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from coadapt.executors.node import processes


def main() -> None:
    directory, command = Path(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the kubelet ignores it
    processes.adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    me = os.getpid()
    parent = processes.dies_with(me)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGUSR1})
        parent()

    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=prepare
        )
    except OSError as error:
        print(error, flush=True)
        _write(directory / "exit", "127")
        return

    def passed(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL if number == signal.SIGUSR1 else number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, passed)
    _write(directory / "pid", f"{me} {processes.started_ticks(me)}")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGUSR1})
    while True:
        # orphans end here, too
        pid, status = os.wait()
        if pid == child.pid:
            break
    while children := processes.children():
        processes.signal_each(children, signal.SIGKILL)
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    _write(directory / "exit", str(code if code >= 0 else 128 - code))


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    main()

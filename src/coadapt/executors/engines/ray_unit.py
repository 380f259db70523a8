"""The actor that a unit of Ray is: it has an agent as its child, and ends with it.

Ray's workers import this module by name, so Coadapt must be installed where they run, as it must be for the agent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from coadapt.executors.engines._base import GENERATION
from coadapt.executors.node.processes import dies_with

#: Seconds for the actor to leave Ray in good order, before its process ends all the same.
_FAREWELL_S = 5.0


class UnitActor:
    """Starts the agent at once, whether or not the driver that asked for it still lives."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # every life of a unit has its own: an actor that was made again under this name is refused by the controller
        generation = f"{os.getpid()}.{time.time_ns()}"
        began = threading.Event()
        # the child dies with the thread that started it, so that thread stays until the child has ended
        self._watch = threading.Thread(
            target=self._live,
            args=(
                [command[0] or sys.executable, *command[1:]],
                {**os.environ, **environment, GENERATION: generation},
                began,
            ),
            daemon=True,
        )
        self._agent: subprocess.Popen[bytes] | None = None
        self._error = ""
        self._watch.start()
        began.wait()
        if self._error:
            raise RuntimeError(self._error)

    def ready(self) -> int:
        """Returns the process id of the agent's guard."""
        assert self._agent is not None
        return self._agent.pid

    def stop(self, kill_wait_s: float) -> None:
        """Asks the agent to end, and kills it after ``kill_wait_s``. The actor ends then."""
        assert self._agent is not None
        self._agent.send_signal(signal.SIGTERM)

        def kill() -> None:
            time.sleep(kill_wait_s)
            if self._agent is not None:
                self._agent.kill()

        threading.Thread(target=kill, daemon=True).start()

    def leave(self) -> None:
        """Ends the actor."""
        import ray

        ray.actor.exit_actor()

    def _live(self, command: list[str], environment: dict[str, str], began: threading.Event) -> None:
        try:
            self._agent = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),
            )
        except OSError as error:
            self._error = f"the agent cannot be started: {error}"
            return
        finally:
            began.set()
        self._agent.wait()
        self._end()

    def _end(self) -> None:
        """Has the actor leave in good order, so that Ray does not report a crash; if Ray is gone it ends all the same."""

        def leave() -> None:
            import ray

            ray.get_runtime_context().current_actor.leave.remote()

        threading.Thread(target=leave, daemon=True).start()
        time.sleep(_FAREWELL_S)
        os._exit(0)

"""The guard of an agent: starts it, ends whatever it leaves when it dies, and starts the next one.

It is the ancestor to which processes fall whose parents have died, so none of a replica's helpers escapes it, however it was
detached. If the guard itself is killed, the agent dies with it, and the replicas with the agent.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from coadapt.errors import InputError
from coadapt.executors.agent.api_link import Api
from coadapt.executors.agent.session_process import REFUSED, AgentSettings
from coadapt.executors.engines._base import GENERATION, JOB_END, REMAINING, UNIT
from coadapt.executors.engines.slurm import time_left_s
from coadapt.executors.node import processes
from coadapt.executors.node.devices import machine_offer
from coadapt.model import Node
from coadapt.model.resources import parse_cluster
from coadapt.store.home import home
from coadapt.units import parse_duration

log = logging.getLogger(__name__)
_AGAIN_S = 1.0
#: Seconds after which an agent in an engine's room that is not let in ends.
_GIVE_UP_S = 600.0


class Guard:
    """Keeps an agent alive until it leaves or is refused."""

    def __init__(self, directory: Path, settings: AgentSettings) -> None:
        self._directory, self._settings = directory, settings
        self._agent: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> int:
        """Returns the exit code: 0 after SIGTERM or SIGINT, 2 if the controller refused the agent."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        processes.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while True:
            code = self._live()
            end_children()
            if code == 0 or self._stopping:
                return 0
            if code == REFUSED:
                return 2
            log.warning("the agent has ended (%s); starting another", code)
            time.sleep(_AGAIN_S)

    def _live(self) -> int:
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "coadapt.executors.agent.session_process", str(self._directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=processes.dies_with(os.getpid()),
        )
        assert self._agent.stdin is not None
        with suppress(BrokenPipeError):
            self._agent.stdin.write(msgspec.json.encode(self._settings))
            self._agent.stdin.close()
        if self._stopping:
            self._agent.terminate()
        return self._agent.wait()

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True
        if self._agent is not None and self._agent.returncode is None:
            self._agent.terminate()


def end_children() -> None:
    """Kills every process that is or becomes a child of this one, until there is none."""
    while children := processes.children():
        processes.signal_each(children, signal.SIGKILL)
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def join_machine(
    url: str,
    *,
    token: str = "",
    token_file: str = "",
    name: str = "",
    gpus: str = "auto",
    virtual: str = "",
    address: str = "",
    ca: str = "",
    directory: str = "",
    until: str = "",
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Offers this machine to a controller until SIGTERM or Ctrl-C; returns the exit code. InputError for impossible options.

    Args:
        url: address of the controller's API.
        token: of role node; or
        token_file: a file with it.
        name: of the node; empty: the host name.
        gpus: how many GPUs (cores, where there are none) to offer; "auto": all.
        virtual: virtual GPUs instead, COUNT[:TYPE].
        address: at which other machines reach replicas here; empty: the one on the way to the controller.
        ca: file with certificates to trust; empty: the system's.
        directory: for output and code; empty: one of the user's data directory, by the name of the node.
        until: when the machine is taken away, as a time from now (8h) or a moment (2026-11-18T20:00); empty: what the engine says.
        environment: what an engine says of this machine, if it is one's (``engines._base``): unit, life of it, time that remains.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    name = name or socket.gethostname().partition(".")[0]
    settings = AgentSettings(
        url=url,
        token=_token(token, token_file),
        nodes=offered(name, gpus=gpus, virtual=virtual),
        virtual=bool(virtual),
        address=address,
        ca=str(Path(ca).absolute()) if ca else "",
        unit=environment.get(UNIT, ""),
        generation=environment.get(GENERATION, ""),
        until=end_of(until, environment, time.time()),
        # room that nobody lets in is given back
        give_up_s=_GIVE_UP_S if environment.get(GENERATION) else None,
    )
    Api(url, settings.token, settings.ca)  # refuses an address that is none, before anything starts
    place = Path(directory).absolute() if directory else home() / "nodes" / (settings.unit or name)
    return Guard(place, settings).run()


def end_of(until: str, environment: Mapping[str, str], now: float) -> float | None:
    """Returns when a machine is taken away, in unix seconds; None: it stays. InputError for a moment that is none, or is past."""
    if until:
        try:
            end = now + parse_duration(until)
        except InputError:
            try:
                end = datetime.fromisoformat(until).timestamp()
            except ValueError:
                raise InputError(
                    f"--until {until!r} is neither a time from now (8h) nor a moment (2026-11-18T20:00)"
                ) from None
        if end <= now:
            raise InputError(f"--until {until} is not in the future")
        return end
    left_s = time_left_s(environment.get(REMAINING, ""))
    if left_s is not None:
        return now + left_s
    job_end = environment.get(JOB_END, "")
    return float(job_end) if job_end.isdigit() and int(job_end) > now else None


def offered(name: str, *, gpus: str, virtual: str) -> tuple[Node, ...]:
    """Returns the nodes that a machine offers: one for each GPU type, or one of virtual GPUs."""
    if virtual:
        if gpus != "auto":
            raise InputError("--virtual and --gpus exclude each other")
        try:
            (node,) = parse_cluster(f"1x{virtual}").nodes
        except (InputError, ValueError):
            raise InputError(f"--virtual {virtual!r} is not COUNT[:TYPE], for example 4:t4") from None
        return (msgspec.structs.replace(node, name=name),)
    found = machine_offer(gpus)
    return tuple(
        msgspec.structs.replace(node, name=name if len(found) == 1 else f"{name}-{node.gpu_type}")
        for node in found
    )


def _token(token: str, token_file: str) -> str:
    if token_file:
        try:
            token = Path(token_file).read_text().strip()
        except OSError as error:
            raise InputError(f"--token-file {token_file}: {error.strerror}") from None
    if not token:
        raise InputError(
            "no token: set COADAPT_NODE_TOKEN or --token-file; an administrator creates one by "
            "'coadapt token create NAME --role node'"
        )
    return token

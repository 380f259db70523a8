"""Machines for tests of joined executors: agents as real processes, on loopback or in network namespaces of their own.

``Relay`` stands for the API: it passes the requests of agents on to the hub, and can be cut, as a network can.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from coadapt.executors.agent.session_messages import AgentsListed, ListAgents, reply_decoder
from coadapt.executors.hub.hub_client import HubAwayError, ask_hub
from coadapt.executors.node.processes import dies_with, started_ticks
from coadapt.executors.node.protocol import Lines, socket_path
from coadapt.store.home import Home
from tests.waiting import until

COADAPT = (str(Path(sys.executable).with_name("coadapt")),)


class Relay:
    """Passes requests of agents on to the hub of a home; serves archives of code beneath it."""

    def __init__(self, home: Home, host: str = "127.0.0.1") -> None:
        self.home, self.cut = home, threading.Event()
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if relay.cut.is_set():
                    self.close_connection = True
                    return
                answer = relay.ask(body)
                if relay.cut.is_set():
                    self.close_connection = True
                    return
                self.send_response(200 if answer else 503)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self) -> None:
                path = relay.home.code / f"{self.path.rpartition('/')[2]}.tar.gz"
                data = path.read_bytes() if path.is_file() else b""
                self.send_response(200 if data else 404)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # agents are killed in the midst of requests

        self._server = Server((host, 0), Handler)
        self.url = f"http://{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def ask(self, body: bytes) -> bytes:
        """One line to the hub and one back; empty if no hub answers."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(60.0)
                with socket_path(self.home.hub) as path:
                    connection.connect(path)
                connection.sendall(body + b"\n")
                lines = Lines(connection)
                while (found := lines.receive()) is not None:
                    if found:
                        return found[0]
        except OSError:
            pass
        return b""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Machine:
    """One agent with its guard; ``inside``: a command that runs another one elsewhere, as ``ip netns exec NAME`` does."""

    def __init__(
        self,
        directory: Path,
        url: str,
        name: str,
        offer: str = "2:t4",
        inside: Sequence[str] = (),
        address: str = "",
        token: str = "test",
        ca: str = "",
    ) -> None:
        self.directory, self.name, self._token = directory, name, token
        self._command = [*inside, *COADAPT, "node", "join", url, "--name", name, "--virtual", offer]
        self._command += ["--directory", str(directory)]
        self._command += ["--address", address] if address else []
        self._command += ["--ca", ca] if ca else []
        self.log = directory.with_suffix(".log")
        self.guard: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.guard = subprocess.Popen(
                self._command,
                env={**os.environ, "COADAPT_NODE_TOKEN": self._token},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),
            )

    @property
    def agent(self) -> int:
        """The pid of the agent, the child of the guard."""
        found: list[int] = []

        def there() -> bool:
            found[:] = children_of(self.guard.pid) if self.guard is not None else []
            return bool(found)

        until(there, f"no agent of {self.name}: {self.log.read_text()}")
        return found[0]

    def kill_agent(self) -> int:
        """Kills the agent, not its guard; returns its pid."""
        pid = self.agent
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_all(self) -> None:
        """Kills guard and agent, as a power cut does."""
        assert self.guard is not None
        agents = children_of(self.guard.pid)
        self.guard.kill()
        for pid in agents:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.guard.wait()

    def stop(self) -> int:
        """Has the machine leave; returns the guard's exit code."""
        assert self.guard is not None
        if self.guard.poll() is None:
            self.guard.terminate()
        return self.guard.wait()


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            if fields[1] == str(pid) and fields[0] not in "ZX":
                found.append(int(entry.name))
    return sorted(found)


def alive(pid: int) -> bool:
    return started_ticks(pid) is not None


def agents_of(home: Home) -> AgentsListed:
    try:
        found = ask_hub(home.hub, ListAgents())
    except HubAwayError:
        return AgentsListed()
    assert isinstance(found, AgentsListed)
    return found


def joined(home: Home) -> set[str]:
    return {name for each in agents_of(home).agents for name in each.nodes}


def asked(home: Home, request: msgspec.Struct) -> object:
    """The hub's answer to a request that is sent as an agent would send it."""
    relay = Relay.__new__(Relay)
    relay.home = home
    return reply_decoder.decode(relay.ask(msgspec.json.encode(request)))

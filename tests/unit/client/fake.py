"""A controller that answers what it was told to, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import msgspec


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FakeController:
    """``answers``: "GET /v1/me" -> an answer, or (status, answer), or bytes, or a list of these to be given in turn."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[Asked] = []
        self.url = ""

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        self.asked.append(asked)
        name = f"{asked.method} {asked.path.partition('?')[0]}"
        found = self.answers.get(name, (404, {"error": f"no answer for {name}"}))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        status, body = found if isinstance(found, tuple) else (200, found)
        return status, body if isinstance(body, bytes) else msgspec.json.encode(body)


@contextmanager
def fake_controller() -> Iterator[FakeController]:
    fake = FakeController()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, data = fake.answer(Asked(self.command, self.path, dict(self.headers), body))
            if status == 0:  # hangs up without a word
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

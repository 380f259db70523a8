"""The agent's requests: a connection that the API closed while it was idle is no reason to give up."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from coadapt.executors.agent.api_link import Api, LinkError
from coadapt.executors.agent.session_messages import Leave, Left


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        data = msgspec.json.encode(Left())
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        # as an API that is replaced: the client learns of it by its next request only
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_request_on_a_connection_that_was_closed_is_sent_again_on_a_new_one() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    api = Api(f"http://127.0.0.1:{server.server_address[1]}", "t")
    try:
        for _ in range(3):
            assert api.post("/v1/agents/leave", Leave(session="s")) == Left()
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(LinkError, match="does not answer"):
        api.post("/v1/agents/leave", Leave(session="s"))
    api.close()

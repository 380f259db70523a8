"""The rendezvous store of replicas, hosted by a process that outlives them: a launcher, or a keeper through this module.

``python -m coadapt.torch.elastic.rendezvous_process --port-file FILE`` hosts one for all jobs of a node, writes its port
atomically into the file, and exits when its parent does. A keeper needs no PyTorch: it writes a JSON line to standard input
and reads one from standard output (docs/agent-protocol.md):

    {"ask": "notify", "job": "j", "attempt": 2, "notice": {"kind": "resize", "generation": 1, "members": ["a", "b"]}}
    {"ask": "there", "job": "j", "attempt": 2, "keys": ["ready1/b"]}
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch.distributed as dist

from coadapt.torch.elastic.notices import Notice, encode
from coadapt.torch.elastic.process_group import Place
from coadapt.torch.elastic.sealed_store import ForgedError, hosted_store, in_namespace

_POLL_S = 0.2


class Rendezvous:
    """The keys of ``attempt`` of ``job`` in ``store``, restarted ``restarts`` times; used by the process that starts its replicas."""

    def __init__(
        self, store: dist.Store, job: str, attempt: int, restarts: int = 0, *, secret: str = ""
    ) -> None:
        place = Place(job=job, attempt=attempt, restarts=restarts)
        self._store = in_namespace(store, place.namespace, secret.encode())

    def notify(self, notice: Notice) -> None:
        """Write a notice under the next key that the replicas of the generation before will read."""
        text, number, before = encode(notice), 0, max(notice.generation - 1, 0)
        while True:
            there = self._store.compare_set(f"notices{before}/{number}", "", text)
            if there.decode() == text:
                return
            number += 1

    def there(self, keys: Sequence[str]) -> bool:
        """Whether replicas have set all of the keys; ForgedError if anybody else has."""
        if not keys:
            return True
        if not self._store.check(list(keys)):
            return False
        for key in keys:
            self._store.get(key)
        return True


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line from a keeper."""

    ask: str
    job: str = ""
    attempt: int = 0
    #: How often all replicas of the attempt were restarted.
    restarts: int = 0
    notice: Notice | None = None
    keys: tuple[str, ...] = ()
    #: Seals the values of the attempt (``COADAPT_STORE_SECRET``); empty: they are not sealed.
    secret: str = ""


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The response to a request, in the order of requests."""

    ok: bool
    there: bool | None = None
    why: str = ""


def hosted(host: str = "127.0.0.1") -> dist.TCPStore:
    """A store on a free port of the address ``host``, alive as long as the object."""
    return hosted_store(host)


def answer(store: dist.Store, line: str | bytes) -> Response:
    """Execute a request line of a keeper."""
    try:
        request = msgspec.json.decode(line, type=Request)
    except msgspec.DecodeError as error:
        return Response(ok=False, why=str(error))
    rendezvous = Rendezvous(store, request.job, request.attempt, request.restarts, secret=request.secret)
    try:
        if request.ask == "there":
            return Response(ok=True, there=rendezvous.there(request.keys))
        if request.ask == "notify" and request.notice is not None:
            rendezvous.notify(request.notice)
            return Response(ok=True)
    except ForgedError as error:
        return Response(ok=False, why=str(error))
    return Response(ok=False, why=f"{request.ask!r}: the request must be notify (with a notice) or there")


def main() -> None:
    """Host a store, write its port to the file, and answer requests until the parent exits."""
    parser = argparse.ArgumentParser(prog="python -m coadapt.torch.elastic.rendezvous_process")
    parser.add_argument("--port-file", type=Path, help="file that the port is written to")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at: loopback, or of a private network"
    )
    given = parser.parse_args()
    parent = os.getppid()
    store = hosted(given.host)
    if given.port_file is not None:
        scratch = given.port_file.with_name(f"{given.port_file.name}.{os.getpid()}.tmp")
        scratch.write_text(f"{store.port}\n")
        scratch.replace(given.port_file)
    _write_line(msgspec.json.encode({"port": store.port}))
    threading.Thread(target=_serve, args=(store,), daemon=True).start()
    while os.getppid() == parent:
        time.sleep(_POLL_S)


def _serve(store: dist.Store) -> None:
    for line in sys.stdin:
        if line.strip():
            _write_line(msgspec.json.encode(answer(store, line)))


def _write_line(line: bytes) -> None:
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

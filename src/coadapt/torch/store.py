"""The store at which replicas meet, kept by somebody who outlives them: a launcher, or a keeper through this process.

``python -m coadapt.torch.store --port-file FILE`` hosts one for all jobs of a node, writes its port into the file (whole or not
at all) and lives until its parent dies. A keeper needs no PyTorch: it writes a JSON line to standard input and reads one from
standard output (docs/agent-protocol.md):

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

from coadapt.torch.notices import Notice, encode
from coadapt.torch.place import Place

_LOOK_AGAIN_S = 0.2


class Meeting:
    """One attempt's part of a store, as seen by who starts its replicas."""

    def __init__(self, store: dist.Store, job: str, attempt: int, restarts: int = 0) -> None:
        place = Place(job=job, attempt=attempt, restarts=restarts)
        self._store = dist.PrefixStore(place.namespace, store)

    def notify(self, notice: Notice) -> None:
        """Writes the notice where the replicas of the generation before look next."""
        text, number, before = encode(notice), 0, max(notice.generation - 1, 0)
        while True:
            there = self._store.compare_set(f"notices{before}/{number}", "", text)
            if there.decode() == text:
                return
            number += 1

    def there(self, keys: Sequence[str]) -> bool:
        """Whether replicas have set all of the keys."""
        return not keys or bool(self._store.check(list(keys)))


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a keeper."""

    ask: str
    job: str = ""
    attempt: int = 0
    #: How often all replicas of the attempt were started anew.
    restarts: int = 0
    notice: Notice | None = None
    keys: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to it, in the order of the questions."""

    ok: bool
    there: bool | None = None
    why: str = ""


def hosted() -> dist.TCPStore:
    """A store on a port of the system's choice, alive as long as the object."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def answer(store: dist.Store, line: str | bytes) -> Answer:
    """What a line of a keeper asks for, done."""
    try:
        asked = msgspec.json.decode(line, type=Asked)
    except msgspec.DecodeError as error:
        return Answer(ok=False, why=str(error))
    meeting = Meeting(store, asked.job, asked.attempt, asked.restarts)
    if asked.ask == "there":
        return Answer(ok=True, there=meeting.there(asked.keys))
    if asked.ask == "notify" and asked.notice is not None:
        meeting.notify(asked.notice)
        return Answer(ok=True)
    return Answer(ok=False, why=f"{asked.ask!r}: ask to notify (with a notice) or what is there")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m coadapt.torch.store")
    parser.add_argument("--port-file", type=Path, help="file that the port is written to")
    given = parser.parse_args()
    parent = os.getppid()
    store = hosted()
    if given.port_file is not None:
        scratch = given.port_file.with_name(f"{given.port_file.name}.{os.getpid()}.tmp")
        scratch.write_text(f"{store.port}\n")
        scratch.replace(given.port_file)
    _say(msgspec.json.encode({"port": store.port}))
    threading.Thread(target=_obey, args=(store,), daemon=True).start()
    while os.getppid() == parent:
        time.sleep(_LOOK_AGAIN_S)


def _obey(store: dist.Store) -> None:
    for line in sys.stdin:
        if line.strip():
            _say(msgspec.json.encode(answer(store, line)))


def _say(line: bytes) -> None:
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

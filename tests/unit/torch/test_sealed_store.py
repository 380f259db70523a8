"""The replicas' store: listens at one address, and takes nothing from those who do not know the attempt's secret."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from coadapt.torch.elastic.rendezvous_process import Rendezvous, answer, hosted
from coadapt.torch.elastic.sealed_store import ForgedError, SealedStore, hosted_store, in_namespace

SPACE = "coadapt/j/1/0"


@pytest.fixture(scope="module")
def server() -> dist.TCPStore:
    return hosted()


def stranger(server: dist.TCPStore) -> dist.Store:
    """Somebody who reaches the store and knows nothing but names of keys."""
    return dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=20))


def listening(port: int) -> set[str]:
    """Addresses at which this machine listens on a port, in the kernel's notation."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                found.add(address.rpartition(":")[0])
    return found


def test_store_listens_on_loopback_only(server: dist.TCPStore) -> None:
    assert listening(server.port) == {"0100007F"}
    given = hosted_store("127.0.0.2")
    assert listening(given.port) == {"0200007F"}


def test_values_of_the_attempt_are_read_and_others_refused(server: dist.TCPStore) -> None:
    mine = in_namespace(server, SPACE, b"secret")
    assert isinstance(mine, SealedStore)
    mine.set("a", "text")
    mine.set("b", b"\x00\xff")
    assert mine.get("a") == b"text"
    assert mine.get("b") == b"\x00\xff"
    raw = stranger(server)
    seen = raw.get(f"{SPACE}/a")
    assert b"secret" not in seen
    raw.set(f"{SPACE}/forged", "text")
    raw.set(f"{SPACE}/moved", seen.decode())
    raw.set(f"{SPACE}/odd", b"\xff\xfe".decode("latin1"))
    for key in ("forged", "moved", "odd"):
        with pytest.raises(ForgedError, match=key):
            mine.get(key)
    with pytest.raises(ForgedError):
        in_namespace(server, SPACE, b"another").get("a")
    raw.set("coadapt/j/1/1/a", seen.decode())
    with pytest.raises(ForgedError):
        in_namespace(server, "coadapt/j/1/1", b"secret").compare_set("a", "", "x")


def test_compare_set_keeps_the_first_value(server: dist.TCPStore) -> None:
    mine = in_namespace(server, "coadapt/k/1/0", b"secret")
    assert mine.compare_set("n", "", "first") == b"first"
    assert mine.compare_set("n", "", "second") == b"first"
    assert mine.compare_set("n", "first", "third") == b"third"


def test_keeper_does_not_believe_a_forged_key(server: dist.TCPStore) -> None:
    question = json.dumps({"ask": "there", "job": "f", "attempt": 1, "keys": ["ready1/b"], "secret": "s"})
    assert answer(server, question).there is False
    namespace = "coadapt/f/1/0"
    stranger(server).set(f"{namespace}/ready1/b", "1")
    said = answer(server, question)
    assert not said.ok
    assert "not written by this attempt" in said.why
    in_namespace(server, namespace, b"s").set("ready1/b", "1")
    assert answer(server, question).there is True
    assert Rendezvous(server, "f", 1, secret="s").there(["ready1/b"])

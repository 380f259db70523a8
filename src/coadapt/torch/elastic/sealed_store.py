"""The store of replicas with sealed values: HMAC-SHA256 over namespace, key and value, under a secret of the attempt.

A TCPStore has no password, and anybody who reaches it can list its keys and write to them. The secret is in the
environment of the replicas (``COADAPT_STORE_SECRET``) and nowhere in the store. A value that was not sealed with it, or was sealed
for another key, is refused. Whoever reaches the store can still disturb it: remove keys, or write values that are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from coadapt.errors import CoadaptError
from coadapt.wire.agent import Variable

#: Bytes of a seal.
SEAL_BYTES = 64


class ForgedError(CoadaptError):
    """A value in the store, or data of another replica, was not sealed with this attempt's secret."""


def secret_of(environment: Mapping[str, str] = os.environ) -> bytes:
    """Returns the secret of the attempt; empty: there is none, and nothing is sealed."""
    return environment.get(Variable.STORE_SECRET, "").encode()


def seal(secret: bytes, name: str, value: bytes | memoryview) -> str:
    """Returns the seal of ``value`` under ``name``."""
    made = hmac.new(secret, f"coadapt store 1\0{name}\0".encode(), hashlib.sha256)
    made.update(value)
    return made.hexdigest()


class SealedStore(dist.Store):
    """``store`` (a ``PrefixStore`` of ``namespace``) with values sealed by ``secret``. Counters (``add``) are not sealed."""

    def __init__(self, store: dist.Store, namespace: str, secret: bytes) -> None:
        super().__init__()
        self._store, self._namespace, self._secret = store, namespace, secret

    @property
    def unsealed(self) -> dist.Store:
        """The same keys without seals."""
        return self._store

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value."""
        self._store.set(key, self._sealed(key, value).decode())

    def get(self, key: str) -> bytes:
        """Waits for a value and returns it; ForgedError if it was not sealed."""
        return self._opened(key, self._store.get(key))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Sets a value if the present one is ``expected`` (empty: if there is none); returns the present one."""
        before = self._sealed(key, expected).decode() if expected else ""
        return self._opened(key, self._store.compare_set(key, before, self._sealed(key, value).decode()))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist; nothing is known of their values."""
        return bool(self._store.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys exist."""
        if timeout is None:
            self._store.wait(list(keys))
        else:
            self._store.wait(list(keys), timeout)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter."""
        return int(self._store.add(key, amount))

    def delete_key(self, key: str) -> bool:
        """Removes a key."""
        return bool(self._store.delete_key(key))

    def num_keys(self) -> int:
        """Number of keys of all namespaces."""
        return int(self._store.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long ``get`` and ``wait`` wait."""
        self._store.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        """How long ``get`` and ``wait`` wait."""
        return self._store.timeout

    def _sealed(self, key: str, value: str | bytes) -> bytes:
        # gloo stores bytes that are no text; a store's compare_set takes text only
        data = value.encode() if isinstance(value, str) else bytes(value)
        text = data.hex()
        return (seal(self._secret, f"{self._namespace}/{key}", data) + text).encode()

    def _opened(self, key: str, found: bytes) -> bytes:
        try:
            text = bytes(found).decode("ascii")
            data = bytes.fromhex(text[SEAL_BYTES:])
        except ValueError:
            data, text = b"", ""
        right = seal(self._secret, f"{self._namespace}/{key}", data)
        if not hmac.compare_digest(text[:SEAL_BYTES], right):
            raise ForgedError(f"the value of {key!r} in the replicas' store was not written by this attempt")
        return data


def in_namespace(store: dist.Store, namespace: str, secret: bytes) -> dist.Store:
    """Returns ``store`` for the keys of one namespace, sealed if there is a secret."""
    inside = dist.PrefixStore(namespace, store)
    return SealedStore(inside, namespace, secret) if secret else inside


def hosted_store(host: str, port: int = 0, **options: Any) -> dist.TCPStore:
    """A store that listens at the address ``host`` only (a TCPStore by itself listens on all), alive as long as the object."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
        number = listener.getsockname()[1]
    except OSError:
        listener.close()
        raise
    return dist.TCPStore(
        host, number, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), **options
    )

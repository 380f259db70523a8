"""One API for a test, ended with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.server import log_follower, lookahead_process
from tests.unit.server.served import Client, Served


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    # what was appended is to be seen by the very next request
    monkeypatch.setattr(log_follower, "FRESH_S", 0.0)
    # the machine may stand still for minutes
    monkeypatch.setattr(lookahead_process, "START_S", 600.0)
    monkeypatch.setattr(lookahead_process, "LIMIT_S", 600.0)
    house = Served(tmp_path)
    yield house
    house.close()


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as client:
        yield client

"""The generator: clients that submit, agents that report, people who look; each request with its latency. Runs on a core of its own.

    python -m benchmarks.server_load HOME CORE SECONDS KIND...

KIND: submits, reports, reads (at the rates of a busy minute), or submits! ... for as many as 8 (readers: 4) clients get answered.
At a given rate latency counts from when a request was due: one that has to wait for the answer to the one before it is late as
well. Requests that were due and never sent are told.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import msgspec

from benchmarks.server_home import RUNNING, WAITING, measured, spec_of
from coadapt.store.home import Home, secret_of
from coadapt.wire.agent import Report, job_token
from coadapt.wire.api import Submit

SUBMITTERS, SUBMITS_PER_S = 8, 2000 / 60
AGENTS, AGENT_EVERY_S = 500, 30.0
READERS, READS_PER_S = 4, 20.0


class Connection:
    """One client that keeps its connection open."""

    def __init__(self, address: str, token: str) -> None:
        parts = urlsplit(address)
        self._host, self._port, self._token = parts.hostname, parts.port, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", more: str = "") -> tuple[int, bytes]:
        """Status and body of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode()
            + body
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)


class Load:
    """All that ask at once; latencies by kind."""

    def __init__(self, home: Home, seconds: float) -> None:
        self.address, self.seconds = home.address.read_text().strip(), seconds
        self.token = home.token.read_text().strip()
        self.key = secret_of(home.path / "job_key")
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.refused: dict[str, int] = defaultdict(int)
        self.unsent = 0
        self._began = 0.0

    async def run(self, kinds: list[str]) -> None:
        """Everybody, for as long as they are to."""
        self._began = time.perf_counter()
        tasks = []
        for kind in kinds:
            tasks += {
                "submits": lambda: [
                    self._submitter(n, SUBMITTERS / SUBMITS_PER_S) for n in range(SUBMITTERS)
                ],
                "reports": lambda: [self._agent(n, AGENT_EVERY_S) for n in range(AGENTS)],
                "reads": lambda: [self._reader(n, READERS / READS_PER_S) for n in range(READERS)],
                "submits!": lambda: [self._submitter(n, 0.0) for n in range(SUBMITTERS)],
                "reports!": lambda: [self._agent(n, 0.0) for n in range(8)],
                "reads!": lambda: [self._reader(n, 0.0) for n in range(READERS)],
            }[kind]()
        await asyncio.gather(*tasks)

    async def _submitter(self, number: int, every_s: float) -> None:
        connection, rng = Connection(self.address, self.token), random.Random(f"s{number}")
        async for due in self._beats(every_s, rng):
            body = msgspec.json.encode(Submit(spec=spec_of(rng.randrange(1000))))
            more = f"Idempotency-Key: {uuid.uuid4().hex}\r\n"
            await self._timed("submit", due, connection, "POST", "/v1/jobs", body, more)

    async def _agent(self, number: int, every_s: float) -> None:
        rng, count = random.Random(f"a{number}"), 0
        connections: dict[str, Connection] = {}
        async for due in self._beats(every_s, rng):
            # without a pause several agents take turns, for each is held to a rate; they keep their connections
            which = number if every_s else number + 8 * (count % 6)
            job, count = f"train-{which % 50}-{which}", count + 1
            connection = connections.setdefault(job, Connection(self.address, job_token(self.key, job)))
            body = msgspec.json.encode(
                Report(
                    job=job,
                    attempt=1,
                    number=time.monotonic_ns() >> 10,
                    measurements=(measured(job, 1, 50 + count).measurement,),
                )
            )
            await self._timed("report", due, connection, "POST", f"/v1/jobs/{job}/reports", body)

    async def _reader(self, number: int, every_s: float) -> None:
        connection, rng = Connection(self.address, self.token), random.Random(f"r{number}")
        paths = (
            "/v1/jobs?limit=100",
            "/v1/jobs?limit=100&state=running",
            "/v1/cluster",
            "/v1/jobs/{}",
            "/v1/jobs/{}/why",
        )
        async for due in self._beats(every_s, rng):
            job = rng.randrange(RUNNING + WAITING)
            path = rng.choice(paths).format(f"train-{job % 50}-{job}")
            await self._timed("read", due, connection, "GET", path)

    async def _beats(self, every_s: float, rng: random.Random) -> AsyncIterator[float]:
        """Moments at which a request is due; without a pause between them, now."""
        due, end = self._began + rng.uniform(0, every_s), self._began + self.seconds
        while time.perf_counter() < end:
            wait_s = due - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, end - time.perf_counter()))
                if time.perf_counter() < due:
                    return
            yield due if every_s else time.perf_counter()
            due += every_s
        if every_s and due < end:
            self.unsent += math.ceil((end - due) / every_s)

    async def _timed(self, kind: str, due: float, connection: Connection, *request: object) -> None:
        status, _ = await connection.ask(*request)  # type: ignore[arg-type]
        self.latencies[kind].append(time.perf_counter() - due)
        if status >= 300:
            self.refused[f"{kind} {status}"] += 1


def main() -> None:
    """Prints what was measured, as JSON."""
    home, core, seconds, *kinds = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    load = Load(Home(home), float(seconds))
    asyncio.run(load.run(kinds))
    sys.stdout.write(
        json.dumps({"latencies": load.latencies, "refused": load.refused, "unsent": load.unsent})
    )


if __name__ == "__main__":
    main()

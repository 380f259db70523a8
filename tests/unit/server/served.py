"""An API under test: a home with a store, five people, two jobs, and a client for each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient

from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    Configuration,
    DecisionMade,
    JobSpec,
    JobStarted,
    JobSubmitted,
    Measured,
    Measurement,
    NodeJoined,
    Reason,
    Record,
    StartJob,
)
from coadapt.server.app import make_app
from coadapt.store import open_store
from coadapt.store.audit_log import AuditEntry
from coadapt.store.home import Home
from coadapt.store.token_table import Token, token_hash
from coadapt.wire.serve_options import ServeOptions
from tests.builders import a_cluster, a_job, a_trained_job, on

PEOPLE = {"root": "admin", "oz": "operator", "ada": "user", "bob": "user", "eve": "viewer"}
SECRET = "hunter2-and-more"
NOW = 1_000_000.0


def story() -> list[AnyEvent]:
    """One node; ada's job runs and has reported, bob's waits for room."""
    placement = on(("n0", 4))
    ada = a_trained_job(4, name="a", user="ada", command=("python", "a.py"), envs={"KEY": SECRET})
    bob = a_job(4, name="b", user="bob", command=("python", "b.py"), envs={"KEY": SECRET})
    return [
        *(NodeJoined(node=node) for node in a_cluster("1x4").nodes),
        JobSubmitted(job="a-1", spec=ada),
        DecisionMade(
            decision=1, targets={"a-1": placement}, reasons={"a-1": Reason(code="room", text="4 free")}
        ),
        ActionsIssued(decision=1, actions=(StartJob(id=1, job="a-1", attempt=1, placement=placement),)),
        JobStarted(job="a-1", attempt=1),
        Measured(job="a-1", attempt=1, measurement=a_measurement()),
        JobSubmitted(job="b-2", spec=bob),
        DecisionMade(decision=2, reasons={"b-2": Reason(code="full", text="0 of 4 free")}),
    ]


def a_measurement(**fields: Any) -> Measurement:
    """Ten steps on four GPUs."""
    config = Configuration(nodes=1, replicas=4, atomic_batch=16)
    return Measurement(
        **{
            "config": config,
            "count": 10,
            "step_s": 1.0,
            "sync_s": 0.25,
            "grad_sqr": 1.0,
            "grad_var": 1.0,
            "work": 640.0,
        }
        | fields
    )


class Served:
    """The home and what is in it. Appending to the log is the controller's part."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.home = Home(path / "home")
        self.home.make()
        self.options = ServeOptions(**options)
        self.home.write_options(self.options)
        self.store = open_store(self.home.store(self.options), synchronous="OFF")
        self.now = NOW
        with closing(self.store.tokens()) as tokens:
            for name, role in PEOPLE.items():
                tokens.add(Token(name=name, role=role, made_at=0.0), token_hash(f"token-of-{name}"))  # type: ignore[arg-type]
            gone = Token(name="old", role="admin", made_at=0.0, expires_at=NOW - 1)
            tokens.add(gone, token_hash("token-of-old"))
        self._log = self.store.log()
        self.append(*story())

    def append(self, *events: AnyEvent) -> None:
        """As the controller would."""
        last = self._log.last()
        self._log.append([Record(seq=last + 1 + i, at=NOW - 100.0, event=e) for i, e in enumerate(events)])

    def spec(self, job: str) -> JobSpec:
        """As it was submitted."""
        return next(
            r.event.spec for r in self._log.read() if isinstance(r.event, JobSubmitted) and r.event.job == job
        )

    def inbox(self) -> list[AnyEvent]:
        """What was asked for."""
        with closing(self.store.inbox()) as inbox:
            return [event for _, event in inbox.take()]

    def audit(self, **wanted: Any) -> list[AuditEntry]:
        """The audit log, oldest first."""
        with closing(self.store.audit()) as audit:
            return audit.read(**wanted)[::-1]

    def digest(self) -> str:
        """Of everything that a request could change."""
        with closing(self.store.tokens()) as tokens:
            parts = [self.inbox(), list(self._log.read()), tokens.all()]
        files = sorted(str(p) for p in self.home.path.rglob("*") if "store.db" not in p.name)
        return hashlib.sha256(repr((parts, files)).encode()).hexdigest()

    def app(self) -> Starlette:
        """A new API over the same home."""
        return make_app(self.home, self.options, clock=lambda: self.now)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """The API, running."""
        with TestClient(self.app(), base_url="http://127.0.0.1:8642") as http:
            yield Client(http)

    def close(self) -> None:
        self._log.close()


class Client:
    """Asks as somebody."""

    def __init__(self, http: TestClient) -> None:
        self.http = http

    def ask(self, who: str, method: str, path: str, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer token-of-{who}", **more.pop("headers", {})}
        return self.http.request(method, path, headers=headers if who else more.get("headers"), **more)

    def get(self, who: str, path: str, **more: Any) -> Any:
        return self.ask(who, "GET", path, **more)

    def post(self, who: str, path: str, body: Any = None, **more: Any) -> Any:
        return self.ask(who, "POST", path, **({"json": body} if body is not None else {}), **more)


def a_submission(**fields: Any) -> dict[str, Any]:
    """The smallest job."""
    return {"spec": {"name": "c", "command": ["python", "c.py"], **fields}}

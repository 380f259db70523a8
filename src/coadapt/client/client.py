"""The client of a controller: one method per request, over HTTP with the standard library only.

cluster = coadapt.connect("http://127.0.0.1:8642", token="...")
job = cluster.submit({"name": "cifar10", "run": "python train.py", "resources": {"accelerators": "t4:1..4"}})
print(cluster.why(job).sentence)
print(cluster.wait(job).state)
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.model import JobSpec
from coadapt.model.snapshot import ENDED as ENDED
from coadapt.wire import api

_T = TypeVar("_T")


class Client:
    """A connection to one controller as one user. It is not thread-safe: each thread opens its own.

    Args:
        url: Address of the controller.
        token: Token of the user.
        timeout_s: Seconds to wait for an answer.
        ca_file: File of trusted certificates in PEM, for https; None: those of the system.
    """

    def __init__(
        self, url: str, token: str = "", *, timeout_s: float = 30.0, ca_file: str | None = None
    ) -> None:
        self._http = Transport(url, token, timeout_s=timeout_s, ca_file=ca_file)

    @property
    def url(self) -> str:
        """Address of the controller."""
        return self._http.url

    # -- jobs ------------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, *, key: str | None = None) -> str:
        """Submits a job and returns its id. Submitting again with the same ``key`` returns the same job.

        DeadlineError: its deadline cannot be promised.
        """
        return self.submitted(spec, key=key).job

    def submitted(
        self, spec: JobSpec, *, key: str | None = None, drop_deadline: bool = False
    ) -> api.Submitted:
        """Submits a job and returns the answer.

        Args:
            spec: The job.
            key: Submitting again with the same key returns the same job.
            drop_deadline: If the deadline cannot be promised, submit the job without it; ``note`` then says so.
        """
        if key and not is_plain(key):
            raise InputError(
                f"idempotency key {key!r} is not valid; use 1 to 128 letters, digits, '_', '.', ':' or '-'"
            )
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        body = api.Submit(spec=spec, drop_deadline=drop_deadline)
        return self._http.ask("POST", "/v1/jobs", api.Submitted, body=body, headers=headers)

    def preview(self, spec: JobSpec) -> api.Preview:
        """Predicts what would happen if a job were submitted now; changes nothing."""
        return self._http.ask("POST", "/v1/preview", api.Preview, body=api.Submit(spec=spec))

    def jobs(
        self, *, state: str | None = None, user: str | None = None, limit: int = 100, after: int | None = None
    ) -> api.JobPage:
        """Returns one page of jobs, the newest first.

        Args:
            state: Only jobs in this state, for example "running"; several with commas between them.
            user: Only jobs of this user.
            limit: Maximum number of jobs.
            after: ``next`` of the previous page; None: the first page.
        """
        query = {"state": state, "user": user, "limit": limit, "after": after}
        return self._http.ask("GET", "/v1/jobs", api.JobPage, query=query)

    def all_jobs(self, *, state: str | None = None, user: str | None = None) -> Iterator[api.JobLine]:
        """Yields every job, page by page."""
        after: int | None = None
        while True:
            page = self.jobs(state=state, user=user, limit=api.MOST_ROWS, after=after)
            yield from page.jobs
            if page.next is None:
                return
            after = page.next

    def job(self, job: str) -> api.JobDetail:
        """Returns all details of one job."""
        return self._http.ask("GET", _job(job), api.JobDetail)

    def why(self, job: str, *, at: float | None = None) -> api.Why:
        """Explains why the job has its allocation, now or at the past time ``at`` (Unix seconds)."""
        return self._http.ask("GET", _job(job, "why"), api.Why, query={"at": at})

    def course(self, job: str) -> api.Course:
        """Returns the changes of the job over time."""
        return self._http.ask("GET", _job(job, "course"), api.Course)

    def logs(
        self, job: str, *, rank: int = 0, stream: str = "out", attempt: int | None = None, offset: int = 0
    ) -> api.LogPart:
        """Returns a part of a replica's output.

        Args:
            job: Name of the job.
            rank: Rank of the replica.
            stream: "out" or "err".
            attempt: Number of the attempt; None: the last one.
            offset: First byte to return; a negative offset counts from the end.
        """
        query = {"rank": rank, "stream": stream, "attempt": attempt, "offset": offset}
        return self._http.ask("GET", _job(job, "logs"), api.LogPart, query=query)

    def checkpoints(self, job: str) -> list[api.CheckpointLine]:
        """Returns the job's checkpoints, the newest first."""
        return self._http.ask("GET", _job(job, "checkpoints"), api.CheckpointPage).checkpoints

    def cancel(self, job: str) -> api.Accepted:
        """Cancels the job. It has time to save its state, so that ``retry`` can continue it."""
        return self._http.ask("POST", _job(job, "cancel"), api.Accepted)

    def pause(self, job: str) -> api.Accepted:
        """Pauses the job: it saves its state and releases its GPUs until ``resume``."""
        return self._http.ask("POST", _job(job, "pause"), api.Accepted)

    def resume(self, job: str) -> api.Accepted:
        """Allows a paused job to run again."""
        return self._http.ask("POST", _job(job, "resume"), api.Accepted)

    def retry(self, job: str) -> api.Accepted:
        """Runs a job that failed or was cancelled again, from its last checkpoint."""
        return self._http.ask("POST", _job(job, "retry"), api.Accepted)

    def update(self, job: str, change: api.Update) -> None:
        """Changes priority, deadline, sizes or time limit of the job."""
        self._http.ask("PATCH", _job(job), api.Accepted, body=change)

    def wait(
        self,
        job: str,
        *,
        timeout_s: float | None = None,
        look_again_s: float = 1.0,
        on_look: Callable[[api.JobLine], None] | None = None,
    ) -> api.JobLine:
        """Waits until the job has ended, and returns it.

        Args:
            job: Name of the job.
            timeout_s: Maximum waiting time in seconds, after which the unfinished job is returned; None: no limit.
            look_again_s: Seconds between two requests.
            on_look: Called with the job after every request.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            line = self.job(job).line
            if on_look is not None:
                on_look(line)
            left = None if until is None else until - time.monotonic()
            if line.state in ENDED or (left is not None and left <= 0):
                return line
            time.sleep(look_again_s if left is None else min(look_again_s, left))

    def upload(self, code: bytes) -> str:
        """Uploads packed code (a gzipped tar) and returns its SHA-256."""
        if len(code) > api.MOST_CODE:
            raise InputError(
                f"the packed code has {len(code) >> 20} MiB, the limit is {api.MOST_CODE >> 20} MiB; exclude data and "
                "results with .gitignore or .coadaptignore"
            )
        name = hashlib.sha256(code).hexdigest()
        kind = {"Content-Type": "application/x-tar+gzip"}
        self._http.ask("PUT", f"/v1/code/{name}", api.Accepted, body=code, headers=kind)
        return name

    # -- cluster ---------------------------------------------------------------------------------------

    def cluster(self) -> api.ClusterNow:
        """Returns an overview of the cluster."""
        return self._http.ask("GET", "/v1/cluster", api.ClusterNow)

    def nodes(self) -> list[api.NodeLine]:
        """Returns the nodes and the jobs on them."""
        return self._http.ask("GET", "/v1/nodes", api.NodePage).nodes

    def drain(self, node: str) -> None:
        """Drains a node: it gets no new replicas, and preemptible jobs leave it."""
        self._http.ask("POST", f"/v1/nodes/{_part(node, 'node')}/drain", api.Accepted)

    def node_gone(self, node: str) -> None:
        """Declares that no process is left on a node's machine: its jobs start elsewhere without waiting for its lease."""
        self._http.ask("POST", f"/v1/nodes/{_part(node, 'node')}/gone", api.Accepted)

    def open(self, node: str) -> None:
        """Opens a drained node for replicas again."""
        self._http.ask("POST", f"/v1/nodes/{_part(node, 'node')}/open", api.Accepted)

    def quotas(self) -> list[api.QuotaLine]:
        """Returns quotas and GPUs in use, by user or team."""
        return self._http.ask("GET", "/v1/quotas", api.QuotaPage).quotas

    def set_quota(
        self,
        group: str,
        gpus: int | msgspec.UnsetType | None = msgspec.UNSET,
        *,
        priority: int | msgspec.UnsetType = msgspec.UNSET,
        deadlines: int | msgspec.UnsetType | None = msgspec.UNSET,
        members: list[str] | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> None:
        """Sets what a user or team is granted; what is left out stays as it is.

        Args:
            group: Name of the user or team.
            gpus: Most GPUs that its jobs hold together; None: no limit.
            priority: Up to this priority its jobs come before those of other users.
            deadlines: Most jobs with a deadline that have not ended; None: no limit.
            members: Users who may submit jobs of this team; None: no list.
        """
        body = api.Quota(gpus=gpus, priority=priority, deadlines=deadlines, members=members)
        self._http.ask("PUT", f"/v1/quotas/{_part(group, 'user or team')}", api.Accepted, body=body)

    def eta(self) -> api.EtaPage:
        """Forecasts start and end of every job, by simulating the current state."""
        return self._http.ask("GET", "/v1/eta", api.EtaPage)

    def predictions(self) -> list[api.PredictionLine]:
        """Returns predictions and the actual results."""
        return self._http.ask("GET", "/v1/predictions", api.PredictionPage).predictions

    def events(self, *, after: int = -1, job: str | None = None, limit: int = 100) -> api.EventPage:
        """Returns a page of the event log."""
        return self._http.ask(
            "GET", "/v1/events", api.EventPage, query={"after": after, "job": job, "limit": limit}
        )

    def stream(self, *, after: int | None = None) -> Iterator[api.EventLine]:
        """Yields events as they happen, until the server closes the connection."""
        for line in self._http.lines("/v1/stream", {"after": after}):
            if line.startswith("data:"):
                yield msgspec.json.decode(line[5:].strip(), type=api.EventLine)

    # -- who is asking ---------------------------------------------------------------------------------

    def me(self) -> api.Me:
        """Returns the user who owns the token."""
        return self._http.ask("GET", "/v1/me", api.Me)

    def tokens(self) -> list[api.TokenLine]:
        """Returns the owners of all tokens. Administrators only."""
        return self._http.ask("GET", "/v1/tokens", api.TokenPage).tokens

    def create_token(self, new: api.NewToken) -> api.TokenMade:
        """Creates a token. It cannot be retrieved again."""
        return self._http.ask("POST", "/v1/tokens", api.TokenMade, body=new)

    def revoke_token(self, name: str) -> None:
        """Revokes a token."""
        self._http.ask("DELETE", f"/v1/tokens/{_part(name, 'token')}", api.Accepted)

    def audit(
        self,
        *,
        user: str | None = None,
        subject: str | None = None,
        since: float | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> api.AuditPage:
        """Returns a page of the audit log, newest first. Operators and administrators only.

        Args:
            user: Only what this user did.
            subject: Only what was done to this job, node, group or token.
            since: Only from this time on, in Unix seconds.
            before: Only entries with a smaller number: ``next`` of the page before.
            limit: Most entries.
        """
        query = {"user": user, "subject": subject, "since": since, "before": before, "limit": limit}
        return self._http.ask("GET", "/v1/audit", api.AuditPage, query=query)

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _job(job: str, part: str = "") -> str:
    return f"/v1/jobs/{_part(job, 'job')}" + (f"/{part}" if part else "")


_LISTS = {"job": "ps", "node": "nodes", "user or team": "quota", "token": "token list"}


def _part(name: str, what: str) -> str:
    """Quotes a name as one part of a path; refuses names that would change the path."""
    if name in ("", ".", "..") or not name.isprintable():
        raise InputError(f"{name!r} is not the name of a {what}; 'coadapt {_LISTS[what]}' lists them")
    return quote(name, safe="")


class UnreachableError(CoadaptError):
    """The controller does not answer."""

    exit_code = 4


class RefusedError(InputError):
    """The controller refused the request with the HTTP status ``status``."""

    def __init__(self, message: str, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class DeadlineError(RefusedError):
    """The deadline cannot be promised; ``earliest_s`` after submission can be, None: none can."""

    exit_code = 3

    def __init__(self, message: str, status: int, earliest_s: float | None) -> None:
        super().__init__(message, status)
        self.earliest_s = earliest_s


class NotFoundError(RefusedError):
    """There is no such job, node or token, or it belongs to another user."""


def is_plain(text: str) -> bool:
    """Whether a text consists of visible ASCII characters, as headers and addresses must."""
    return all(32 < ord(letter) < 127 for letter in text)


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # for example a port that is not a number
        good = False
    if not good or not is_plain(url):
        raise InputError(
            f"{url!r} is not the address of a controller; write for example http://127.0.0.1:8642"
        )
    return parts


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror
        raise InputError(f"{ca_file} is not a file of certificates in PEM ({why})") from None


#: Codes of OpenSSL for a certificate whose issuer is not known, or that signed itself.
_UNKNOWN_ISSUER = frozenset((2, 18, 19, 20, 21))


def _untrusted(url: str, error: ssl.SSLCertVerificationError) -> str:
    remedy = (
        "; set COADAPT_CA_FILE to a PEM file with the certificate of its issuer"
        if error.verify_code in _UNKNOWN_ISSUER
        else ""
    )
    return f"the certificate of {url} is not trusted: {error.verify_message}{remedy}"


class Transport:
    """Sends requests and decodes answers. A connection that the server has closed is opened again, once.

    Args:
        url: Address of the controller.
        token: Token of the user.
        timeout_s: Seconds to wait for an answer.
        ca_file: File of trusted certificates in PEM, for https; None: those of the system.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = 30.0, ca_file: str | None = None) -> None:
        parts = _parts(url)
        if not is_plain(token):
            raise InputError("the token contains blanks or characters that are not ASCII; copy it again")
        self.url, self._token, self._timeout_s = url.rstrip("/"), token, timeout_s
        self._host, self._port, self._base = parts.hostname or "", parts.port, parts.path.rstrip("/")
        self._context = _trusting(ca_file) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        answer: type[_T],
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> _T:
        """Sends one request and returns its decoded answer.

        Args:
            method: Method of the request.
            path: Path below the address of the controller.
            answer: Type of the answer.
            query: Parameters of the query.
            body: Body of the request: bytes, or an object that is sent as JSON.
            headers: Further headers.
        """
        try:
            data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise InputError("a name, a word of the command or a value is not UTF-8 text") from None
        status, text = self._exchange(method, self._target(path, query), data, dict(headers or {}))
        if 200 <= status < 300:
            try:
                return msgspec.json.decode(text, type=answer)
            except msgspec.DecodeError as error:
                raise UnreachableError(
                    f"the server at {self.url} is not a controller of this version ({error})"
                ) from None
        raise self._refused(status, text)

    def lines(self, path: str, query: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Yields the lines of a stream on a separate connection, until the server ends it."""
        connection = self._open(timeout_s=None)
        try:
            connection.request("GET", self._target(path, query), headers=self._headers({}))
            answer = connection.getresponse()
            if answer.status != 200:
                raise self._refused(answer.status, answer.read(1 << 16))
            for line in answer:
                yield line.decode(errors="replace").rstrip("\r\n")
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _target(self, path: str, query: Mapping[str, Any] | None) -> str:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return f"{self._base}{path}" + (f"?{urlencode(given)}" if given else "")

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        own = {"Content-Type": "application/json"}
        if self._token:
            own["Authorization"] = f"Bearer {self._token}"
        return {**own, **more}

    def _exchange(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        fresh = self._connection is None
        try:
            return self._once(method, target, data, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            self.close()
            # the request may have been carried out already: only idempotent requests are repeated
            if fresh or not (method in ("GET", "PUT") or "Idempotency-Key" in headers):
                raise self._unreachable(error) from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: invalid host name
            self.close()
            raise self._unreachable(error) from None
        try:
            return self._once(method, target, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from None

    def _once(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._open(self._timeout_s)
        self._connection.request(method, target, body=data, headers=self._headers(headers))
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _open(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=self._context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _refused(self, status: int, text: bytes) -> CoadaptError:
        try:
            problem = msgspec.json.decode(text, type=api.Problem)
        except msgspec.DecodeError:
            problem = api.Problem(error=f"{self.url} answered with status {status} without a message")
        if status == 404:
            return NotFoundError(problem.error, status)
        if status >= 500:
            return UnreachableError(problem.error)
        if problem.code == "deadline":
            return DeadlineError(problem.error, status, problem.earliest_s)
        return RefusedError(problem.error, status, problem.retry_after_s)

    def _unreachable(self, error: Exception) -> UnreachableError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return UnreachableError(_untrusted(self.url, error))
        why = "no answer in time" if isinstance(error, socket.timeout) else str(error) or "no answer"
        return UnreachableError(f"no controller at {self.url}: {why}; is 'coadapt serve' running?")

"""The pages of the dashboard and their routes, signing in and out, and the chart of predicted against actual times.

Pages show the answers of the API, so that a page cannot contradict ``/v1``. The chart compares how long each job was
predicted to take at first with how long it took.

Every request for a page is authenticated, then rendered; errors are rendered as pages too. Signing in turns a token that
is typed once, or a link that ``coadapt serve`` printed, into a cookie for reading. A page of another site cannot sign
somebody in: the browser sends the origin of a form, and other origins are refused.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any, NamedTuple, get_args
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as PathRoute

from coadapt.errors import StoreError
from coadapt.model import AnyEvent
from coadapt.model.snapshot import ENDED, HOLDING, WAITING, ShownState
from coadapt.server.audit_trail import Actor
from coadapt.server.callers import use_code
from coadapt.server.dashboard.rendering import answered, asset, page, rendered
from coadapt.server.http.problems import Refused, store_away
from coadapt.server.http.routing import SEGMENT, Call, NoQuery, decode_query, read_body, reader_of
from coadapt.server.roles import PERMITTED, Who
from coadapt.server.routes import audit, cluster, job_files, jobs, predictions
from coadapt.server.routes.audit import AuditQuery
from coadapt.server.routes.health import LEASE_S
from coadapt.server.routes.jobs import Count, JobsQuery
from coadapt.server.services import Services
from coadapt.store.audit_log import Attribution
from coadapt.store.token_table import token_hash
from coadapt.wire.api import ClusterNow, JobPage, PredictionLine

SIDE, _EDGE = 320.0, 34.0
#: Durations that axes may begin and end with.
_TICKS = (1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)


class Judged(NamedTuple):
    """One job that came to the end that was predicted; seconds since it was submitted."""

    job: str
    predicted_s: float
    low_s: float
    high_s: float | None
    actual_s: float

    @property
    def within(self) -> bool:
        """True if the actual time lies in the predicted interval."""
        return self.low_s <= self.actual_s and (self.high_s is None or self.actual_s <= self.high_s)

    @property
    def error(self) -> float:
        """Relative error: predicted over actual, less one."""
        return self.predicted_s / self.actual_s - 1


class Plot(NamedTuple):
    """Coordinates of the chart's points and ticks."""

    points: list[tuple[float, float, float, float, Judged]]
    ticks: list[tuple[float, int]]


def judged(line: PredictionLine, submitted_at: float | None) -> Judged | None:
    """Compares a prediction with the actual end; None if the job has not ended or was not seen."""
    if line.actual is None or submitted_at is None or line.actual <= submitted_at:
        return None
    said, high = line.predicted, line.predicted.high
    return Judged(
        job=line.job,
        predicted_s=said.value - submitted_at,
        low_s=said.low - submitted_at,
        high_s=None if high is None else high - submitted_at,
        actual_s=line.actual - submitted_at,
    )


def scatter(rows: Sequence[Judged]) -> Plot | None:
    """x, y, and the ends of the range, for each job, on logarithmic axes that both are alike."""
    if not rows:
        return None
    values = [max(value, 1.0) for row in rows for value in (row.predicted_s, row.actual_s)]
    low = max((tick for tick in _TICKS if tick <= min(values)), default=_TICKS[0])
    high = min((tick for tick in _TICKS if tick >= max(values)), default=max(values))
    high = max(high, 10 * low)

    def place(seconds: float) -> float:
        share = math.log(max(seconds, 1.0) / low) / math.log(high / low)
        return _EDGE + min(max(share, 0.0), 1.0) * (SIDE - 2 * _EDGE)

    points = [
        (
            place(row.actual_s),
            SIDE - place(row.predicted_s),
            SIDE - place(row.low_s),
            SIDE - place(high if row.high_s is None else row.high_s),
            row,
        )
        for row in rows
    ]
    return Plot(points, [(place(tick), tick) for tick in _TICKS if low <= tick <= high])


#: Rows on the first page: of jobs that hold GPUs, that wait, and that have ended; and on a page of all.
_MOST_AT_WORK, _MOST_WAITING, _MOST_ENDED, _ROWS = 100, 50, 10, 100
#: Callers whose first page is kept.
_MOST_KEPT = 64
#: Bytes of output, and how many of the newest changes.
_TAIL, _CHANGES = 16_000, 40
#: What may happen: a browser has to name what it listens to.
KINDS = " ".join(sorted(kind.__name__ for kind in get_args(AnyEvent)))


class ListQuery(msgspec.Struct, frozen=True):
    """``after`` is the ``next`` of the page before."""

    after: Count | None = None


def first(call: Call) -> Response:
    """``GET /``: the cluster now, and its jobs. Made once for all who look within a second in which nothing happens."""
    call.services.follower.refresh()
    follower, kept = call.services.follower, call.services.first_pages
    age_s = call.services.controller_age_s()
    away = age_s is None or age_s > LEASE_S
    key = (follower.position, int(follower.now), away)
    if kept.get(call.caller, (None,))[0] != key:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        kept[call.caller] = key, _first(call)
    return answered(kept[call.caller][1])


def _first(call: Call) -> bytes:
    return rendered(
        "cluster.html",
        **around(call, "cluster"),
        active=_jobs(call, list(HOLDING), _MOST_AT_WORK),
        waiting=_jobs(call, list(WAITING), _MOST_WAITING),
        ended=_jobs(call, list(ENDED), _MOST_ENDED),
    )


def listed(call: Call) -> Response:
    """``GET /jobs``: all of them, newest first, in pages."""
    return page(
        "jobs.html", **around(call, "jobs"), found=_jobs(call, list(ShownState), _ROWS, call.query.after)
    )


async def job(call: Call) -> Response:
    """``GET /jobs/JOB``."""
    detail = jobs.detail(call)
    told = jobs.course(call)
    return page(
        "job.html",
        **around(call, "jobs"),
        detail=detail,
        line=detail.line,
        why=await jobs.why(call._replace(query=jobs.WhyQuery())),
        changes=told.changes[: -_CHANGES - 1 : -1],
        earlier=max(len(told.changes) - _CHANGES, 0),
        prediction=predictions.line_of(call.services.seen(detail.line.job, call.caller)),
        outputs={stream: _output(call, stream) for stream in ("out", "err")},
    )


def predicted(call: Call) -> Response:
    """``GET /predictions``: what was said of jobs, beside what came."""
    lines = predictions.page(call).predictions
    submitted = {
        line.job: job.submitted_at
        for line in lines
        if (job := call.services.follower.job(line.job)) is not None
    }
    known = [row for line in lines if (row := judged(line, submitted.get(line.job))) is not None]
    return page(
        "predictions.html",
        **around(call, "predictions"),
        lines=lines,
        rows=known,
        off_by=median(abs(row.error) for row in known) if known else None,
        plot=scatter(known),
    )


async def audited(call: Call) -> Response:
    """``GET /audit``: who changed what; for operators and administrators."""
    return page("audit.html", **around(call, "audit"), found=await audit.page(call), query=call.query)


def around(call: Call, here: str) -> dict[str, Any]:
    """Returns the data of the frame that every page has."""
    now: ClusterNow = cluster.now(call)
    age_s = now.controller_age_s
    return {
        "here": here,
        "kinds": KINDS,
        "cluster": now,
        "now": now.now,
        "caller": call.caller,
        "sees_audit": call.caller.role in PERMITTED["operator"],
        "controller_away": age_s is None or age_s > LEASE_S,
    }


def _jobs(call: Call, states: Sequence[str], limit: int, after: int | None = None) -> JobPage:
    query = JobsQuery(state=",".join(states), limit=limit, after=after)
    return msgspec.json.decode(jobs.page(call._replace(query=query)).body, type=JobPage)


def _output(call: Call, stream: Any) -> str:
    """The last lines, each whole, without reports: those are drawn."""
    text = job_files.logs(call._replace(query=job_files.LogsQuery(stream=stream, offset=-_TAIL))).text
    if len(text.encode(errors="replace")) >= _TAIL:
        text = text.partition("\n")[2]
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("COADAPT {"))


_MOST_FORM = 4096
#: Pages of ours that one may go on to; nothing that a browser could take for another host.
_NEXT = re.compile(r"/(?:(?:jobs|predictions|audit)(?:/[A-Za-z0-9][A-Za-z0-9_.@-]{0,127})?)?", re.ASCII)
_WRONG = "The token is unknown or has expired."
_OVER = "The link has expired or was used before. Run 'coadapt dashboard' for a new one."


def ask(request: Request, services: Services) -> Response:
    """``GET /sign-in``: the form; with ``?once=``, no form is needed."""
    next_ = next_of(request.query_params.get("next", ""))
    code = request.query_params.get("once")
    if code is None:
        return page("sign_in.html", next=next_, fault="")
    if not use_code(services.home, code, now=services.clock()):
        # only what fails is counted: others may share the address
        _refuse(request, services, "a sign-in link that has expired or was used")
        return page("sign_in.html", status=401, next="/", fault=_OVER)
    try:
        token = services.home.token.read_text().strip()
    except OSError:
        raise Refused(503, "The token of the local administrator cannot be read.") from None
    return _enter(request, services, token, "/", "link")


async def take(request: Request, services: Services) -> Response:
    """``POST /sign-in``."""
    check_origin(request)
    form = parse_qs((await read_body(request, _MOST_FORM)).decode(errors="replace"), max_num_fields=8)
    token, next_ = form.get("token", [""])[0].strip(), next_of(form.get("next", [""])[0])
    try:
        return _enter(request, services, token, next_, "token")
    except Refused as refused:
        if refused.status != 401:
            raise
        _refuse(request, services, "sign-in with a token that is unknown or has expired")
        return page("sign_in.html", status=401, next=next_, fault=_WRONG)


def _refuse(request: Request, services: Services, why: str) -> None:
    """Counts a sign-in that failed; Refused if there were too many from the address."""
    address = services.proxy.address(request)
    services.audit.refused(address, why)
    services.strangers.take(address)


def leave(request: Request, services: Services) -> Response:
    """``POST /sign-out``."""
    check_origin(request)
    response = RedirectResponse("/sign-in", 303)
    services.sessions.sign_out(request, response)
    return response


def to_sign_in(request: Request) -> Response:
    """Redirects a caller who is not signed in to the sign-in page."""
    return RedirectResponse(f"/sign-in?next={quote(next_of(request.url.path))}", 303)


def next_of(path: str) -> str:
    """Returns the page to show after signing in: one of this dashboard, otherwise the first."""
    return path if _NEXT.fullmatch(path) else "/"


def check_origin(request: Request) -> None:
    """Raises Refused if the form was sent by a page of another origin."""
    origin = request.headers.get("origin")
    elsewhere = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if elsewhere or (origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")):
        raise Refused(403, "The form was sent by another site.")


def _enter(request: Request, services: Services, token: str, next_: str, via: str) -> Response:
    hashed = token_hash(token)
    caller = services.callers.of_hash(hashed)  # Refused where it is no good
    response = RedirectResponse(next_, 303)
    services.sessions.sign_in(
        request, response, hashed, services.clock(), secure=services.proxy.secure(request)
    )
    who = Attribution(actor=caller.name, role=caller.role, via=via, address=services.proxy.address(request))
    services.audit.note(who, "sign-in")
    return response


log = logging.getLogger(__name__)
Answer = Callable[[Request, Services], Any]


def dashboard_routes(services: Callable[[], Services]) -> list[PathRoute]:
    """Returns the routes of all pages, which the OpenAPI document leaves out."""
    table: tuple[tuple[str, str, Answer], ...] = (
        ("GET", "/", _signed_in(first)),
        ("GET", "/jobs", _signed_in(listed, ListQuery)),
        ("GET", "/jobs/{job}", _signed_in(job)),
        ("GET", "/predictions", _signed_in(predicted)),
        ("GET", "/audit", _signed_in(audited, AuditQuery, "operator")),
        ("GET", "/sign-in", ask),
        ("POST", "/sign-in", take),
        ("POST", "/sign-out", leave),
        ("GET", "/assets/{name}", lambda request, services: asset(request.path_params["name"])),
    )
    return [PathRoute(path, _endpoint(answer, services), methods=[method]) for method, path, answer in table]


def _endpoint(answer: Answer, services: Callable[[], Services]) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        try:
            given = answer(request, services())
            response: Response = await given if inspect.isawaitable(given) else given
            return response
        except Refused as refused:
            return page("problem.html", status=refused.status, error=str(refused))
        except StoreError as error:
            log.error("%s: %s", request.scope.get("route"), error)
            return page("problem.html", status=503, error=str(store_away()))
        except ClientDisconnect:
            return page("problem.html", status=400, error="The connection was closed.")
        except Exception:
            log.exception("%s went wrong", request.scope.get("route"))
            return page(
                "problem.html",
                status=500,
                error="Internal error. The log of the API has the details.",
            )

    return answered


def _signed_in(handle: Callable[[Call], Any], query: type = NoQuery, who: Who = "reader") -> Answer:
    def answer(request: Request, services: Services) -> Any:
        try:
            caller = reader_of(request, services)
        except Refused as refused:
            if refused.status != 401:
                raise
            return to_sign_in(request)
        services.limits.take(f"user {caller.name}")
        if caller.role not in PERMITTED[who]:
            raise Refused(403, f"The role {caller.role} does not permit this.")
        if caller.via == "proxy":
            services.audit.proxied(
                Actor(caller.name, caller.role, caller.via, services.proxy.address(request))
            )
        for value in request.path_params.values():
            if not SEGMENT.fullmatch(value):
                raise Refused(404, "Not found.")
        asked: Any = decode_query(request.query_params.multi_items(), query)
        return handle(Call(services, caller, request.path_params, asked, None, request))

    return answer

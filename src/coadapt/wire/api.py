"""What the HTTP API takes and answers, under ``/v1``, as JSON. Server, client and browser share these shapes.

Times are unix seconds, durations seconds, amounts in base units. Requests refuse fields they do not know. Every answer other
than 2xx is a ``Problem``. Where a list may be long it comes in pages: ``limit`` and ``after`` (a job's ``order``, an event's
``seq``), and the answer says what ``after`` comes next.

    POST   /v1/jobs                      Submit          -> 201 Submitted     (the header Idempotency-Key makes a repeat harmless)
    POST   /v1/preview                   Submit          -> Preview           what submitting would mean; changes nothing
    GET    /v1/jobs?state=&user=&limit=&after=            -> JobPage
    GET    /v1/jobs/{job}                                 -> JobDetail
    GET    /v1/jobs/{job}/why?at=                         -> Why
    GET    /v1/jobs/{job}/course                          -> Course            what changed over time, for charts
    GET    /v1/jobs/{job}/logs?rank=&stream=out|err&attempt=&offset=  -> LogPart
    GET    /v1/jobs/{job}/checkpoints                     -> CheckpointPage
    POST   /v1/jobs/{job}/cancel|pause|resume|retry       -> 202 Accepted
    PATCH  /v1/jobs/{job}                Update           -> 202 Accepted
    POST   /v1/jobs/{job}/reports        wire.agent.Report -> 202 Accepted     (the job's own token)
    GET    /v1/nodes                                      -> NodePage
    POST   /v1/nodes/{node}/drain|open                    -> 202 Accepted     (operator)
    POST   /v1/nodes/{node}/gone                          -> 202 Accepted     (admin; no process is left there)
    POST   /v1/agents/join|exchange|leave                 -> 200              (token of role node; between agent and hub)
    GET    /v1/quotas                                     -> QuotaPage
    PUT    /v1/quotas/{group}            Quota            -> 202 Accepted     (admin)
    GET    /v1/cluster                                    -> ClusterNow
    GET    /v1/eta                                        -> EtaPage           the live state simulated forward with the live policy
    GET    /v1/predictions                                -> PredictionPage    predicted beside actual
    GET    /v1/events?after=&job=&limit=                  -> EventPage
    GET    /v1/stream?after=                              -> server-sent events, each an ``EventLine``
    PUT    /v1/code/{sha256}             application/x-tar+gzip -> 201 Accepted  (frozen code, at most ``MOST_CODE`` bytes)
    GET    /v1/code/{sha256}                              -> application/x-tar+gzip  (token of role node)
    GET    /v1/me                                         -> Me
    GET    /v1/tokens  POST /v1/tokens NewToken -> 201 TokenMade  DELETE /v1/tokens/{name}   (admin)
    GET    /v1/audit?user=&subject=&since=&before=&limit= -> AuditPage         (operator)
    GET    /healthz  /readyz  /metrics                    (no token)
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from coadapt.model import JobSpec
from coadapt.model.interval import Interval

VERSION = 1
#: Bytes of one request, and of frozen code.
MOST_BODY, MOST_CODE = 1 << 20, 256 << 20
#: Rows of one page.
MOST_ROWS = 1000
TokenRole = Literal["admin", "node", "operator", "user", "viewer"]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what is asked."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is answered."""


class Problem(Answer, frozen=True, kw_only=True):
    """Why a request was not carried out, in one line, and what would be right."""

    error: str
    #: 0 where the request was refused as it stands; else seconds after which it may be tried again.
    retry_after_s: float = 0.0
    #: What kind of refusal it is, for programs: "deadline" for a deadline that cannot be promised; empty: none of these.
    code: str = ""
    #: With "deadline": the earliest one that can be promised, in seconds after submission; null: none can be.
    earliest_s: float | None = None


class Submit(Request, frozen=True, kw_only=True):
    """A job as ``JobSpec``; its ``user`` is the token's, whatever it says."""

    spec: JobSpec
    #: If the deadline cannot be promised, the job is submitted without it, instead of being refused.
    drop_deadline: bool = False


class Submitted(Answer, frozen=True, kw_only=True):
    job: str
    #: What is different from what was asked for, in one sentence; empty: nothing.
    note: str = ""


class Accepted(Answer, frozen=True, kw_only=True):
    """It is in the inbox under this number, durable; the controller will carry it out."""

    number: int = 0
    #: What it means for a job that is in a special state, in one sentence; empty: the usual.
    note: str = ""


class Update(Request, frozen=True, kw_only=True):
    """What a user may change of a job; absent: as it is."""

    priority: int | None = None
    #: Seconds after submission; negative: no deadline.
    deadline_s: float | None = None
    max_gpus: int | None = None
    min_gpus: int | None = None
    #: Negative: no limit.
    time_limit_s: float | None = None


class Quota(Request, frozen=True, kw_only=True):
    """What is granted to a user or team; a field that is left out stays as it is."""

    #: Most GPUs that its jobs hold together; null: no limit.
    gpus: int | msgspec.UnsetType | None = msgspec.UNSET
    #: Up to this priority its jobs come before those of other users; 0: priorities count among its own only.
    priority: int | msgspec.UnsetType = msgspec.UNSET
    #: Most jobs with a deadline that have not ended; null: no limit.
    deadlines: int | msgspec.UnsetType | None = msgspec.UNSET
    #: Users who may submit jobs of this team; null: no list. Where any team has one, jobs of other teams are refused.
    members: list[str] | msgspec.UnsetType | None = msgspec.UNSET


class NewToken(Request, frozen=True, kw_only=True):
    name: str
    role: TokenRole = "user"
    #: Seconds until it is void; None: never.
    expires_in_s: float | None = None
    #: Of role node: nodes that may join with it, where * stands for any characters; empty: those of the first machine that joins.
    nodes: list[str] = []


class TokenMade(Answer, frozen=True, kw_only=True):
    """Shown once; only its hash is kept."""

    name: str
    role: TokenRole
    token: str


class TokenLine(Answer, frozen=True, kw_only=True):
    name: str
    role: TokenRole
    made_at: float
    expires_at: float | None = None
    #: Of role node: nodes that may join with it; empty: those of the first machine that joins; null: every node.
    nodes: list[str] | None = None


class TokenPage(Answer, frozen=True, kw_only=True):
    tokens: list[TokenLine]


class Me(Answer, frozen=True, kw_only=True):
    name: str
    role: TokenRole


class AuditLine(Answer, frozen=True, kw_only=True):
    """Who did what to which job, node, group or token, when and from where."""

    number: int
    at: float
    user: str
    role: str
    #: How the user proved who he is: token, cookie, proxy, link, local; empty: not at all.
    via: str
    address: str
    action: str
    subject: str
    detail: str


class AuditPage(Answer, frozen=True, kw_only=True):
    """Newest first; ``next`` is the ``before`` of the next page."""

    entries: list[AuditLine]
    next: int | None = None


class JobLine(Answer, frozen=True, kw_only=True):
    """One row of ``ps``."""

    job: str
    name: str
    user: str
    team: str
    order: int
    #: QUEUED (never ran, or waits for a retry), STARTING, RUNNING, RESIZING, STOPPING (still holds its GPUs), PREEMPTED (has
    #: run, holds no GPUs, continues later), PAUSED (by a user, until resumed), SUCCEEDED, FAILED or CANCELLED.
    state: str
    #: True from ``pause`` to ``resume``, also while the job is still stopping.
    on_hold: bool = False
    #: After a failure: when the next attempt may start.
    retry_at: float | None = None
    #: Jobs that must succeed before it may start.
    after: list[str] = []
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    attempt: int = 0
    restarts: int = 0
    #: GPUs that its processes hold now, their type and nodes.
    gpus: int = 0
    gpu_type: str = ""
    nodes: list[str] = []
    batch: int | None = None
    #: Share of its work that is done, where that is known.
    progress: float | None = None
    #: Statistical efficiency of its batch, and useful examples per second, as last measured.
    efficiency: float | None = None
    goodput: float | None = None
    #: Expected end in unix seconds. Of a job that holds no GPUs it is taken from the last look-ahead, if there is one.
    eta: Interval | None = None
    #: All its work is done and its processes are about to end: ``eta`` says nothing useful any more.
    finishing: bool = False
    deadline_at: float | None = None
    #: Chance that it misses its deadline; None without one, or where nothing is known.
    late: float | None = None
    gpu_s: float = 0.0
    #: In the unit of the price file; None without one.
    cost: float | None = None
    why: str = ""
    metrics: dict[str, float] = {}
    #: How the job failed, in a sentence; empty unless its state is FAILED.
    failure: str = ""


class JobPage(Answer, frozen=True, kw_only=True):
    jobs: list[JobLine]
    #: All that match, not only those on this page.
    total: int
    #: ``after`` of the next page; None: this is the last.
    next: int | None = None
    #: Sequence number of the log that this is true of.
    seq: int = -1


class JobDetail(Answer, frozen=True, kw_only=True):
    line: JobLine
    #: Without values of ``envs``: they may be secrets.
    spec: JobSpec
    #: Replicas by node.
    placement: dict[str, int]
    #: Last lines of the replica that failed first, and which it was.
    tail: str = ""
    rank: int | None = None
    exit_code: int | None = None
    kind: str = ""
    #: What ``planning.replan`` says where a deadline is at risk.
    advice: str = ""


class Holder(Answer, frozen=True, kw_only=True):
    """Somebody who has what the job waits for."""

    job: str
    user: str
    gpus: int
    eta: float | None = None


class Why(Answer, frozen=True, kw_only=True):
    """The dominant reason in one sentence with its numbers, who holds what, and what comes next."""

    job: str
    at: float
    state: str
    sentence: str
    code: str = ""
    numbers: dict[str, float] = {}
    holders: list[Holder] = []
    next: str = ""
    #: The decision that it stems from, and when it was made.
    decision: int | None = None
    decided_at: float | None = None
    #: What ``planning.replan`` says where a deadline is at risk.
    advice: str = ""


class CoursePoint(Answer, frozen=True, kw_only=True):
    at: float
    gpus: int | None = None
    batch: int | None = None
    efficiency: float | None = None
    goodput: float | None = None
    progress: float | None = None
    metrics: dict[str, float] = {}


class Change(Answer, frozen=True, kw_only=True):
    """One thing that was decided or happened, in words."""

    at: float
    seq: int
    text: str
    kind: str


class Course(Answer, frozen=True, kw_only=True):
    job: str
    points: list[CoursePoint]
    changes: list[Change]


class LogPart(Answer, frozen=True, kw_only=True):
    text: str
    #: Where to go on.
    offset: int
    #: No more will come: the attempt has ended and this is its end.
    ended: bool = False
    attempt: int = 0
    rank: int = 0


class CheckpointLine(Answer, frozen=True, kw_only=True):
    name: str
    step: int
    bytes: int
    made_at: float
    #: Written to its end and, where it can be told, whole.
    whole: bool = True


class CheckpointPage(Answer, frozen=True, kw_only=True):
    checkpoints: list[CheckpointLine]


class NodeLine(Answer, frozen=True, kw_only=True):
    node: str
    gpus: int
    gpu_type: str
    state: Literal["up", "drained", "lost"]
    #: GPUs held, by job.
    jobs: dict[str, int]
    free: int
    #: Of a machine that joined: seconds since its agent was last heard, until its lease runs out, and until it is taken away.
    silent_s: float | None = None
    lease_left_s: float | None = None
    remaining_s: float | None = None


class NodePage(Answer, frozen=True, kw_only=True):
    nodes: list[NodeLine]


class QuotaLine(Answer, frozen=True, kw_only=True):
    group: str
    gpus: int | None
    used: int
    priority: int = 0
    deadlines: int | None = None
    #: Jobs with a deadline that have not ended.
    deadlines_used: int = 0
    #: Users who may submit jobs of this team; null: no list.
    members: list[str] | None = None


class QuotaPage(Answer, frozen=True, kw_only=True):
    quotas: list[QuotaLine]


class ClusterNow(Answer, frozen=True, kw_only=True):
    """Everything at a glance, and whether the controller is at work."""

    now: float
    seq: int
    policy: str
    gpus: int
    free_gpus: int
    #: Number of jobs by state.
    states: dict[str, int]
    nodes: list[NodeLine]
    #: Seconds since the controller last renewed its lease; None: there is none.
    controller_age_s: float | None
    version: str
    #: Price of a GPU-hour by type, and its unit; empty without a price file.
    prices: dict[str, float] = {}
    currency: str = ""


class EtaLine(Answer, frozen=True, kw_only=True):
    job: str
    starts_at: float | None
    finishes: Interval | None
    note: str = ""


class EtaPage(Answer, frozen=True, kw_only=True):
    jobs: list[EtaLine]
    #: The log that was simulated forward, and with what.
    seq: int
    policy: str
    #: What limits the forecast as a whole; empty: nothing.
    note: str = ""


class Option(Answer, frozen=True, kw_only=True):
    """One size a job could be given."""

    gpus: int
    batch: int | None
    starts_at: float | None
    finishes: Interval | None
    gpu_s: float | None = None
    cost: float | None = None


class Preview(Answer, frozen=True, kw_only=True):
    """What submitting would mean now, and what other sizes would."""

    chosen: Option
    others: list[Option]
    #: "with 4 instead of 8: starts 3 h earlier, 18% cheaper"
    sentence: str
    #: What is not known, in words; an infeasible deadline is said here.
    notes: list[str] = []


class PredictionLine(Answer, frozen=True, kw_only=True):
    job: str
    said_at: float
    predicted: Interval
    actual: float | None = None


class PredictionPage(Answer, frozen=True, kw_only=True):
    predictions: list[PredictionLine]


class EventLine(Answer, frozen=True, kw_only=True):
    seq: int
    at: float
    kind: str
    job: str = ""
    text: str = ""
    data: dict[str, Any] = {}


class EventPage(Answer, frozen=True, kw_only=True):
    events: list[EventLine]
    next: int | None = None

"""All events of the log: facts from outside, and decisions of the scheduler.

A ``Record`` gives an event its place: a sequence number and the time it was appended. Records are ordered by
sequence number; ``at`` never goes backwards.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from coadapt.model._base import Fact
from coadapt.model.actions import Action
from coadapt.model.allocation import Placement
from coadapt.model.interval import Forecast
from coadapt.model.job_spec import JobSpec
from coadapt.model.measurement import Measurement
from coadapt.model.resources import Node

Outcome = Literal["succeeded", "failed", "cancelled"]
#: Why an attempt is gone although the job has not ended.
#: "shutdown": the whole cluster was stopped (``coadapt down``); "restored": it ran where a backup was made, and not here.
StopCause = Literal[
    "paused", "cancelled", "node-lost", "drained", "preempted", "lost", "shutdown", "restored"
]
#: How an attempt failed: by an error of the script, out of memory, a collective operation that timed out, killed by a
#: signal nobody here sent, without a step for too long, beyond its time limit, or because it could not be started.
FailureKind = Literal["", "exception", "oom", "collective", "killed", "hang", "time-limit", "start"]


#: Characters of the reason of a quarantine.
MOST_REASON = 300


class Event(Fact, frozen=True, tag=True):
    """Base of all events."""


class ControllerStarted(Event, frozen=True):
    """A controller took over the log. Warm starts of policies end here."""

    version: str
    policy: str = ""
    options: dict[str, Any] = {}
    seed: int = 0


class PoolLoaded(Event, frozen=True):
    """Past jobs of another log are known from here on (``prediction.remaining.past_jobs.Pool`` as plain data)."""

    pool: dict[str, Any]


class NodeJoined(Event, frozen=True):
    """A node offers its resources (first time, or back after it was lost; a drained one stays drained)."""

    node: Node
    #: When it is known to be taken away again, as by the time limit of an allocation; None: it stays.
    until: float | None = None


class NodeLost(Event, frozen=True):
    """A node is gone; its replicas count as held until the executor confirms their end."""

    node: str


class NodeDrained(Event, frozen=True):
    """No new replicas on this node; preemptible jobs leave it."""

    node: str
    #: The user who asked for it; empty: not known, or nobody did.
    by: str = ""


class NodeOpened(Event, frozen=True):
    """A drained node takes replicas again."""

    node: str
    #: The user who asked for it; empty: not known, or nobody did.
    by: str = ""


class QuotaSet(Event, frozen=True):
    """What an administrator grants a user or team, in full: it replaces what was set before."""

    group: str
    #: Most GPUs that its jobs may have together; None: no limit.
    gpus: int | None = None
    #: Up to this priority its jobs come before those of other users; beyond, priorities count among its own only.
    priority: int = 0
    #: Most jobs with a deadline that have not ended; None: no limit.
    deadlines: int | None = None
    by: str = ""
    #: Users who may submit jobs of this team; None: no list is set.
    members: tuple[str, ...] | None = None


class JobSubmitted(Event, frozen=True):
    job: str
    spec: JobSpec


class CancelRequested(Event, frozen=True):
    """A user asked for the end of a job; ``by`` names him, here and below."""

    job: str
    by: str = ""


class PauseRequested(Event, frozen=True):
    """The user asked the job to stop and to hold nothing until ``ResumeRequested``."""

    job: str
    by: str = ""


class ResumeRequested(Event, frozen=True):
    """A job that the user had paused may run again."""

    job: str
    by: str = ""


class RetryRequested(Event, frozen=True):
    """A job that failed or was cancelled shall run again, from its last checkpoint."""

    job: str
    by: str = ""


class SpecChanged(Event, frozen=True):
    """The user changed priority, deadline, bounds ... of a job."""

    job: str
    spec: JobSpec
    by: str = ""


class JobStarted(Event, frozen=True):
    """All replicas of this attempt are training."""

    job: str
    attempt: int


class ReplicasReleased(Event, frozen=True):
    """In a resize: the job holds no more than ``placement`` from now on."""

    job: str
    attempt: int
    placement: Placement


class JobResized(Event, frozen=True):
    """All replicas of the new placement are training."""

    job: str
    attempt: int
    placement: Placement


class JobStopped(Event, frozen=True):
    """The last process of this attempt is gone; the job has not ended."""

    job: str
    attempt: int
    cause: StopCause
    #: When it was gone (unix seconds), where no controller listened at that time; None: just now.
    ended_at: float | None = None


class JobFinished(Event, frozen=True):
    """The last process of this attempt is gone; ``outcome`` says how the attempt ended."""

    job: str
    attempt: int
    outcome: Outcome
    exit_code: int | None = None
    reason: str = ""
    kind: FailureKind = ""
    #: Of the replica that failed first.
    rank: int | None = None
    #: Its last lines.
    tail: str = ""
    #: When it was gone (unix seconds), where no controller listened at that time; None: just now.
    ended_at: float | None = None


class JobHung(Event, frozen=True):
    """No step for ``silent_s``, where ``expected_s`` would be usual: the attempt shall be stopped as failed."""

    job: str
    attempt: int
    silent_s: float
    expected_s: float


class JobQuarantined(Event, frozen=True):
    """The job made a controller hang, so it is left out of decisions until ``RetryRequested``."""

    job: str
    reason: str


class CodeMissing(Event, frozen=True):
    """The frozen code of a job that waits is not in this home: it is left out of decisions until ``CodeFound``."""

    job: str


class CodeFound(Event, frozen=True):
    """The code of a job that waited for it is there."""

    job: str


class ClusterRestored(Event, frozen=True):
    """The log so far is that of a backup of another home, made at ``made_at`` (unix seconds).

    Attempts that ran then do not run here, and the nodes of that home are not here unless they join.
    """

    made_at: float


class Measured(Event, frozen=True):
    job: str
    attempt: int
    measurement: Measurement


class ReportsMerged(Event, frozen=True):
    """Stands for ``count`` reports of an attempt in a log that was compacted; ``measurement`` is the last of them.

    ``changes`` are the fields of the job's reports that they changed, as plain data (``scheduler.state.report_merge``):
    applying it gives exactly the state that the reports gave.
    """

    job: str
    attempt: int
    count: int
    measurement: Measurement
    changes: dict[str, Any]


class Woke(Event, frozen=True):
    """The time the scheduler asked to be woken at has come: the only event on which it decides."""


class Reason(Fact, frozen=True):
    """Why a job has what it has: a short code, one sentence, and the numbers in it."""

    code: str
    text: str
    numbers: dict[str, float] = {}


class DecisionMade(Event, frozen=True):
    """A new target. Jobs not named keep theirs; an empty placement takes everything away."""

    decision: int
    targets: dict[str, Placement] = {}
    reasons: dict[str, Reason] = {}
    #: Keys of the policy's memory that changed; None removes a key.
    memory: dict[str, Any] = {}
    #: When the policy wants to be asked again even if nothing happens.
    wake_at: float | None = None
    #: Price of a GPU by type at this decision, in the policy's own unit.
    price: dict[str, float] = {}
    #: What was expected of jobs at this decision, where the policy looked ahead and it is news.
    forecasts: dict[str, Forecast] = {}
    #: Jobs that the policy or a predictor could not handle, and why; they are left out until ``RetryRequested``.
    quarantined: dict[str, str] = {}


class ActionsIssued(Event, frozen=True):
    """Actions are about to be applied; appended to the log before they are."""

    decision: int
    actions: tuple[Action, ...]


ExternalFact = (
    ControllerStarted
    | PoolLoaded
    | NodeJoined
    | NodeLost
    | NodeDrained
    | NodeOpened
    | QuotaSet
    | JobSubmitted
    | CancelRequested
    | PauseRequested
    | ResumeRequested
    | RetryRequested
    | SpecChanged
    | JobStarted
    | ReplicasReleased
    | JobResized
    | JobStopped
    | JobFinished
    | JobHung
    | JobQuarantined
    | CodeMissing
    | CodeFound
    | ClusterRestored
    | Measured
    | ReportsMerged
    | Woke
)
AnyEvent = ExternalFact | DecisionMade | ActionsIssued
#: Events that are decisions of ours, not facts: a replay makes them anew.
DECISIONS = (DecisionMade, ActionsIssued)


class Record(Fact, frozen=True):
    """One line of the log."""

    seq: int
    at: float
    event: AnyEvent
    version: int = 1


# mappings keep their order: a decision names jobs in the policy's order of preference, in which they are then started,
# and a controller that reads the log must start them in the same
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """One record as JSON; the same record gives the same bytes, and reading them gives it back, order included."""
    return _encoder.encode(record)


def decode(data: bytes | str) -> Record:
    """The record in ``data``; reads every schema version up to ours."""
    return _decoder.decode(data)

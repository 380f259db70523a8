"""The agent's protocol: environment variables, exit code, reports of measurements, their checks, and the job's token.

An agent sends measurements to the controller, on standard output or posted over HTTP, as JSON. A line ``COADAPT {json}``
holds one ``Report``; a POST holds the same. Times are durations, never moments: the controller stamps what it receives.
Reports of an attempt are numbered, so that a repeated one is recognised.

``check_report`` refuses impossible values, because a report stays in the controller's log for ever. A job may lie about
itself; it must not be able to break anything for others.

The token of a job is what its agents send with a report, and is valid for nothing else. It follows from the job's id and
a key of the home, so nothing is stored per job, and controller and API agree without asking each other: HMAC-SHA256
(RFC 2104) of the id.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from coadapt.errors import InputError
from coadapt.model import Measurement
from coadapt.model.measurement import PREFIX, ReportLimits, check_measurement

VERSION = 1
#: Exit code of a replica whose state is saved and which may be started again.
SAVED_AND_LEFT = 143


class Variable:
    """Names of the environment variables of a replica; ``docs/agent-protocol.md`` defines each."""

    JOB = "COADAPT_JOB"
    ATTEMPT = "COADAPT_ATTEMPT"
    #: Of the attempt, in the environment of each of its processes: by it they are found.
    TOKEN = "COADAPT_TOKEN"
    ROLE = "COADAPT_ROLE"
    GPU_TYPE = "COADAPT_GPU_TYPE"
    CHECKPOINTS = "COADAPT_CHECKPOINTS"
    BATCH = "COADAPT_BATCH"
    BATCH_RULE = "COADAPT_BATCH_RULE"
    URL = "COADAPT_URL"
    JOB_TOKEN = "COADAPT_JOB_TOKEN"
    STORE = "COADAPT_STORE"
    STORE_SECRET = "COADAPT_STORE_SECRET"
    MEMBER = "COADAPT_MEMBER"
    JOIN = "COADAPT_JOIN"
    PACE = "COADAPT_PACE"
    IN_PLACE = "COADAPT_IN_PLACE"
    SAME_SCHEDULE = "COADAPT_SAME_SCHEDULE"
    AUDIT = "COADAPT_AUDIT"
    #: Of a short run of ``coadapt plan --profile``.
    BATCH_SIZE = "COADAPT_BATCH_SIZE"
    WORKERS = "COADAPT_WORKERS"
    EPOCHS = "COADAPT_EPOCHS"
    SEED = "COADAPT_SEED"
    LR = "COADAPT_LR"


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Measurements of one attempt of a job since its last report."""

    job: str = ""
    attempt: int = 0
    number: int = 0
    measurements: tuple[Measurement, ...] = ()
    #: What the agent decided and why, in one line each.
    decisions: tuple[str, ...] = ()
    #: The script has finished: it counts as finished if it exits with 0, also after it was asked to stop.
    done: bool = False
    version: int = VERSION


def to_line(report: Report) -> str:
    """Returns the line for standard output, without its end."""
    return PREFIX + msgspec.json.encode(report).decode()


def from_line(line: str) -> Report | None:
    """Returns the report in a line; None if the line holds none."""
    if not line.startswith(PREFIX):
        return None
    try:
        return decode(line[len(PREFIX) :])
    except msgspec.DecodeError:
        return None


def encode(report: Report) -> bytes:
    """Encodes a report as the body of a POST."""
    return msgspec.json.encode(report)


def decode(text: str | bytes) -> Report:
    """Decodes a report; msgspec.DecodeError if it is not one."""
    return msgspec.json.decode(text, type=Report)


#: Measurements and remarks in one report.
MOST_MEASUREMENTS = 64


def check_report(report: Report, limits: ReportLimits | None = None) -> None:
    """Raises InputError for the first impossible value of a report; ``limits``: of its job, where they are known."""
    if len(report.measurements) > MOST_MEASUREMENTS or len(report.decisions) > MOST_MEASUREMENTS:
        raise InputError(f"a report holds at most {MOST_MEASUREMENTS} measurements; send more often")
    if not 0 <= report.number < 1 << 53 or not 0 <= report.attempt < 1 << 31:
        raise InputError("number and attempt count from 0")
    for measurement in report.measurements:
        check_measurement(measurement, limits)


TOKEN_PREFIX = "cj_"
#: Bytes of the key in HOME/job_key.
KEY_BYTES = 32
_DOMAIN = b"coadapt job token 1\x00"


def job_token(key: bytes, job: str) -> str:
    """Returns the token of ``job``."""
    return TOKEN_PREFIX + hmac.new(key, _DOMAIN + job.encode(), hashlib.sha256).hexdigest()


def is_token_of(key: bytes, job: str, token: str) -> bool:
    """Returns True if ``token`` is that of ``job``; compares in constant time."""
    return hmac.compare_digest(job_token(key, job).encode(), token.encode())

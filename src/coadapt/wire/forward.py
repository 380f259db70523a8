"""What the API asks of the process that simulates forward and folds back: one line of JSON each way, over its standard streams.

It is a process of its own because it takes seconds of CPU and knows policies, which are composed by ``cli``.
"""

from __future__ import annotations

import msgspec

from coadapt.model import JobSpec


class AskEta(msgspec.Struct, frozen=True, kw_only=True, tag="eta"):
    """Start and end of every job."""


class AskPreview(msgspec.Struct, frozen=True, kw_only=True, tag="preview"):
    """What submitting would mean, as it is and at each of these numbers of replicas."""

    spec: JobSpec
    sizes: tuple[int, ...]


class AskWhy(msgspec.Struct, frozen=True, kw_only=True, tag="why"):
    """Why a job had what it had at a moment of the past."""

    job: str
    at: float


Ask = AskEta | AskPreview | AskWhy


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, as JSON, or the one line why there is none."""

    answer: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""

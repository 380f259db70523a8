"""What an agent says to the controller: measurements, on standard output or posted over HTTP, as JSON.

A line ``COADAPT {json}`` holds one ``Report``; a POST holds the same. Times are durations, never moments: the controller
stamps what it receives. Reports of an attempt are numbered, so that one that was sent twice is known.
"""

from __future__ import annotations

import msgspec

from coadapt.model import Measurement

VERSION = 1
#: What a line of standard output begins with.
PREFIX = "COADAPT "


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Measurements of one attempt of a job since its last report."""

    job: str = ""
    attempt: int = 0
    number: int = 0
    measurements: tuple[Measurement, ...] = ()
    #: What the agent decided and why, in one line each.
    decisions: tuple[str, ...] = ()
    version: int = VERSION


def to_line(report: Report) -> str:
    """The line for standard output, without its end."""
    return PREFIX + msgspec.json.encode(report).decode()


def from_line(line: str) -> Report | None:
    """The report in a line; None if the line is none, or not one of ours."""
    if not line.startswith(PREFIX):
        return None
    try:
        return decode(line[len(PREFIX) :])
    except msgspec.DecodeError:
        return None


def encode(report: Report) -> bytes:
    """For a POST."""
    return msgspec.json.encode(report)


def decode(text: str | bytes) -> Report:
    """The inverse; msgspec.DecodeError where it is none of ours."""
    return msgspec.json.decode(text, type=Report)

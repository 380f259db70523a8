"""Trace readers: a file of recorded jobs becomes a `Workload`."""

from coadapt.simulation.traces._base import (
    BadRow,
    Collector,
    Entry,
    Lines,
    MapProfiles,
    SpecFor,
    Submission,
    TraceFormat,
    Workload,
    profile_for,
)
from coadapt.simulation.traces._open import describe, open_trace, read_trace
from coadapt.simulation.traces.alibaba import OpenbFormat, PaiFormat, SpotFormat
from coadapt.simulation.traces.csv_jsonl import COLUMNS, CsvFormat, JsonLinesFormat, write
from coadapt.simulation.traces.helios import HeliosFormat
from coadapt.simulation.traces.philly import PhillyFormat, PhillyJsonFormat
from coadapt.simulation.traces.pollux import PolluxFormat
from coadapt.simulation.traces.slurm import SlurmFormat
from coadapt.simulation.traces.swf import SwfFormat

__all__ = [
    "COLUMNS",
    "BadRow",
    "Collector",
    "CsvFormat",
    "Entry",
    "HeliosFormat",
    "JsonLinesFormat",
    "Lines",
    "MapProfiles",
    "OpenbFormat",
    "PaiFormat",
    "PhillyFormat",
    "PhillyJsonFormat",
    "PolluxFormat",
    "SlurmFormat",
    "SpecFor",
    "SpotFormat",
    "Submission",
    "SwfFormat",
    "TraceFormat",
    "Workload",
    "describe",
    "open_trace",
    "profile_for",
    "read_trace",
    "write",
]

"""Trace readers: a file of recorded jobs becomes a `Workload`."""

from coadapt.simulate.traces._base import (
    BadRow,
    Entry,
    Lines,
    MapProfiles,
    SpecFor,
    Submission,
    TraceFormat,
    Workload,
)
from coadapt.simulate.traces._collect import Collector
from coadapt.simulate.traces._describe import describe
from coadapt.simulate.traces._open import FORMATS, open_trace, read_trace
from coadapt.simulate.traces._specs import profile_for
from coadapt.simulate.traces.helios import HeliosFormat
from coadapt.simulate.traces.ours import COLUMNS, CsvFormat, JsonLinesFormat, write
from coadapt.simulate.traces.pai import OpenbFormat, PaiFormat, SpotFormat
from coadapt.simulate.traces.philly import PhillyFormat, PhillyJsonFormat
from coadapt.simulate.traces.pollux import PolluxFormat
from coadapt.simulate.traces.slurm import SlurmFormat
from coadapt.simulate.traces.swf import SwfFormat

__all__ = [
    "COLUMNS",
    "FORMATS",
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

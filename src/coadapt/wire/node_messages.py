"""What a controller sends to the machines that run a job, and what it reads back: the launch, the output and checkpoints.

A launch names no path, process or address of any machine: a node finds the job's code by its hash and the job's
checkpoints by its name, beneath its own directories. The one address in it is that of the API, to which agents report.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Stream = Literal["out", "err"]


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one replica; 0: none."""

    cpus: float = 0.0
    memory_bytes: float = 0.0


class Launch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job, as a node has to know it to start replicas. ``executors.job_source`` makes it of a specification."""

    job: str = ""
    command: tuple[str, ...]
    envs: dict[str, str] = {}
    #: SHA-256 of the frozen code the command runs in; empty: it runs where the node's own process does.
    code: str = ""
    #: Runs once on a machine before the first replica of an attempt does.
    setup: tuple[str, ...] = ()
    setup_limit_s: float = 3600.0
    #: GPUs of one replica, by role; 1 where nothing is said.
    gpus: dict[str, int] = {}
    #: Cores and memory that one replica may use, by role; no limit where nothing is said.
    limits: dict[str, Limits] = {}
    #: Name of the Unix account that the job runs as; empty: that of the node's own process.
    account: str = ""
    #: The job's limits of the batch size as JSON, and whether it may be adapted.
    batch: str = ""
    fixed_batch: bool = False
    #: The API that agents post reports to, and by which token; both empty: they print them.
    url: str = ""
    token: str = ""
    #: Name of the step times that virtual GPUs take.
    profile: str = ""
    #: What to read from standard output: names of metrics and regular expressions.
    metrics: dict[str, str] = {}
    #: What a line that tells less than all is completed by: the batch size, and the epochs the job has.
    total_batch: int = 0
    epochs: float | None = None
    #: Examples in the data set, where that is known: no batch is larger.
    data_size: int | None = None


class LogSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what a replica wrote."""

    data: bytes
    #: Where to go on.
    offset: int
    #: Nothing stands beyond it yet.
    at_end: bool = False


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One file that a job saved."""

    name: str
    step: int
    bytes: int
    made_at: float
    #: Written to its end, as far as can be told.
    whole: bool = True

"""One short run of a training command: started, read line by line (``profile_reports``), stopped at its cap.

The whole process group ends with the run. Where reports do not say what a pass takes, the time between two of them counts; of the first one
from the start, where there is only one.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean, median

from coadapt.cli.profile_reports import PassReport, Reader
from coadapt.errors import CoadaptError, InputError
from coadapt.model import Fact

_TAIL = 8
_GRACE_S = 5.0
#: A pass that takes so many times the median one was interrupted.
_STALLED = 3.0


class Result(Fact, frozen=True, kw_only=True):
    """Of one run: all of it, one pass, what is not passes, and what else was told."""

    seconds: float
    pass_s: float
    #: Every pass but the first, which warms up.
    passes_s: tuple[float, ...] = ()
    #: Before the first pass, and beside each; None where reports do not tell passes apart from the rest.
    setup_s: float | None = None
    beside_s: float | None = None
    metrics: tuple[tuple[float, float], ...] = ()
    memory_bytes: float | None = None
    #: (passes, noise scale).
    noise: tuple[tuple[float, float], ...] = ()


class RunFailedError(CoadaptError):
    """The command did not tell what a pass takes; its last lines are in the message."""

    exit_code = 2


def run_once(
    line: str,
    environment: dict[str, str],
    *,
    metric: str | None,
    limit_s: float,
    patterns: Mapping[str, re.Pattern[str]] | None = None,
) -> Result:
    """Runs the command and reads what it reports."""
    process, began = _started(line, environment)
    timed_out = threading.Event()

    def stop() -> None:
        timed_out.set()
        _end(process)

    timer = threading.Timer(limit_s, stop)
    timer.start()
    tail: deque[str] = deque(maxlen=_TAIL)
    reader = Reader(metric, patterns)
    try:
        assert process.stdout is not None
        for text in process.stdout:
            tail.append(text.rstrip())
            reader.line(text, time.monotonic() - began)
        code = process.wait()
    finally:
        timer.cancel()
        _end(process)
        if process.stdout is not None:
            process.stdout.close()
    seconds = time.monotonic() - began
    last = " | ".join(each for each in tail if each) or "it said nothing"
    if code != 0 and not timed_out.is_set():
        raise RunFailedError(f"the command failed with exit code {code}; its last lines: {last}")
    if not reader.passes:
        why = f"was stopped after {limit_s:g} s" if timed_out.is_set() else "ended"
        raise RunFailedError(
            f'the command {why} and reported no pass; print \'COADAPT {{"epoch": 1, "epoch_s": ...}}\' after each; its last lines: {last}'
        )
    return result_of(reader.passes, seconds, metric)


def result_of(passes: list[PassReport], seconds: float, metric: str | None) -> Result:
    """What the reports of a run come to."""
    told = [report.epoch_s for report in passes if report.epoch_s is not None]
    ends = [0.0, *(report.at for report in passes)]
    gaps = [b - a for a, b in pairwise(ends)]
    times = told or gaps
    later = tuple(times[1:] if len(times) > 1 else times)
    middle = median(later)
    # a total is made of means; but a machine that was stopped, or a checkpoint, is no pass
    pass_s = float(fmean(each for each in later if each <= _STALLED * middle))
    if not pass_s > 0:
        raise RunFailedError(f"the command reported a pass of {pass_s:g} s; it must take more than 0")
    setup_s = beside_s = None
    if len(told) == len(passes):
        # what the end takes (processes that are waited for) comes before the first pass here: both are there once
        setup_s = max(passes[0].at - told[0], 0.0) + max(seconds - passes[-1].at, 0.0)
        beside = [gap - own for gap, own in zip(gaps[1:], told[1:], strict=True)]
        beside_s = max(float(median(beside)), 0.0) if beside else None
    return Result(
        seconds=seconds,
        pass_s=pass_s,
        passes_s=later,
        setup_s=setup_s,
        beside_s=beside_s,
        metrics=_metrics(passes, metric),
        memory_bytes=max((r.memory_bytes for r in passes if r.memory_bytes is not None), default=None),
        noise=tuple((r.epoch, r.noise_scale) for r in passes if r.noise_scale and r.noise_scale > 0),
    )


def _metrics(passes: list[PassReport], metric: str | None) -> tuple[tuple[float, float], ...]:
    if metric is None:
        return ()
    found = ((report.epoch, report.metrics.get(metric, report.metrics.get("metric"))) for report in passes)
    return tuple((epoch, value) for epoch, value in found if value is not None)


def _started(line: str, environment: dict[str, str]) -> tuple[subprocess.Popen[str], float]:
    try:
        arguments = shlex.split(line)
    except ValueError as error:
        raise InputError(f"the command cannot be split into words ({error}): {line}") from None
    if not arguments:
        raise InputError("the command is empty")
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(f"cannot run {arguments[0]}: {error.strerror}") from None
    return process, began


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the whole group the run started: politely, then not."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except (ProcessLookupError, PermissionError):
            return
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue

"""One short run of a training command: started, read line by line, stopped at its cap.

Understood, one per line of standard output: ``COADAPT {"epoch": 1, "val_acc": 0.81, "epoch_s": 2.4}`` after each pass. Without ``epoch_s`` the
time between two such lines counts (of the first one from the start, where there is only one). For scripts that print something else: regular
expressions by name (``val_acc``, ``epoch``, ``epoch_s``); a line that tells the metric ends a pass. The whole process group ends with the run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from coadapt.errors import CoadaptError, InputError
from coadapt.model import Fact

_PREFIX = "COADAPT "
_TAIL = 8
_GRACE_S = 5.0


class Ran(Fact, frozen=True, kw_only=True):
    """What a run told. ``metrics``: (passes, value)."""

    gpu_type: str
    workers: int
    nodes: int
    batch: int
    seconds: float
    pass_s: float
    metrics: tuple[tuple[float, float], ...] = ()
    reference: bool = False


class Result(Fact, frozen=True, kw_only=True):
    """Of one run."""

    seconds: float
    pass_s: float
    metrics: tuple[tuple[float, float], ...]


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
    timed_out = threading.Event()

    def stop() -> None:
        timed_out.set()
        _end(process)

    timer = threading.Timer(limit_s, stop)
    timer.start()
    tail: deque[str] = deque(maxlen=_TAIL)
    reports: list[tuple[float, dict[str, Any]]] = []
    try:
        assert process.stdout is not None
        for text in process.stdout:
            tail.append(text.rstrip())
            report = _report(text)
            if report is None and patterns:
                report = _matched(text, patterns, metric, len(reports))
            if report is not None:
                reports.append((time.monotonic() - began, report))
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
    passes = [(at, report) for at, report in reports if "epoch" in report]
    if not passes:
        why = f"was stopped after {limit_s:g} s" if timed_out.is_set() else "ended"
        raise RunFailedError(
            f'the command {why} and reported no pass; print \'COADAPT {{"epoch": 1, "epoch_s": ...}}\' after each; its last lines: {last}'
        )
    return Result(seconds=seconds, pass_s=_pass_s(passes), metrics=_metrics(passes, metric))


def _report(text: str) -> dict[str, Any] | None:
    if not text.startswith(_PREFIX):
        return None
    try:
        found = json.loads(text[len(_PREFIX) :])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def compiled(given: Mapping[str, Any]) -> dict[str, re.Pattern[str]]:
    """Regular expressions of a specification, each with one group."""
    found = {}
    for name, text in given.items():
        try:
            pattern = re.compile(str(text))
        except re.error as error:
            raise InputError(f"metrics.{name}: {text!r} is no regular expression ({error})") from None
        if pattern.groups < 1:
            raise InputError(
                f"metrics.{name}: {text!r} has no group; put the number in brackets: 'acc=([0-9.]+)'"
            )
        found[str(name)] = pattern
    return found


def _matched(
    text: str, patterns: Mapping[str, re.Pattern[str]], metric: str | None, before: int
) -> dict[str, Any] | None:
    """What the expressions find in a line, as a report; None unless it ends a pass."""
    found: dict[str, Any] = {}
    for name, pattern in patterns.items():
        match = pattern.search(text)
        if match is not None:
            try:
                found[name] = float(match[1])
            except ValueError:
                continue
    ends = found.keys() & ({metric} if metric in patterns else {"epoch_s", "epoch"})
    return {"epoch": before + 1, **found} if ends else None


def _pass_s(passes: list[tuple[float, dict[str, Any]]]) -> float:
    """Median over passes; the first one warms up, and counts only where it is alone."""
    told = [report["epoch_s"] for _, report in passes if isinstance(report.get("epoch_s"), int | float)]
    if not told:
        ends = [at for at, _ in passes]
        told = [b - a for a, b in zip([0.0, *ends], ends, strict=False)]
    told = sorted(told[1:] if len(told) > 1 else told)
    value = float(told[len(told) // 2])
    if not value > 0:
        raise RunFailedError(f"the command reported a pass of {value:g} s; it must take more than 0")
    return value


def _metrics(
    passes: list[tuple[float, dict[str, Any]]], metric: str | None
) -> tuple[tuple[float, float], ...]:
    if metric is None:
        return ()
    found = []
    for _, report in passes:
        value = report.get(metric, report.get("metric"))
        if isinstance(value, int | float) and float(report["epoch"]) > 0:
            found.append((float(report["epoch"]), float(value)))
    return tuple(found)


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

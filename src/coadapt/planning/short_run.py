"""One short run of a training command: its command line, its process, and what it reports on standard output.

The command is the user's template with an option filled in. The same values are in the environment, for scripts that take
no arguments: COADAPT_BATCH_SIZE, COADAPT_WORKERS, COADAPT_EPOCHS, COADAPT_LR and COADAPT_SEED. ``coadapt.torch`` is asked to
report (COADAPT_JOB), to keep the batch size it is given (COADAPT_BATCH_RULE), and not to resume another run
(COADAPT_CHECKPOINTS).

The output is read line by line, and the run is stopped at its time limit; its whole process group ends with it. Lines are

    COADAPT {"epoch": 1, "epoch_s": 2.4, "val_acc": 0.81, "memory_bytes": 5e9, "noise_scale": 300}    after each pass, by hand
    COADAPT {"measurements": [...]}      by ``coadapt.torch``: step times, gradient statistics, metrics (``job.report(memory_bytes=...)``, too)
    epoch 3 took 2.4s acc=0.81           by regular expressions of the specification; a line with the metric ends a pass

Each becomes a ``PassReport``; a value that is missing is None (all but the epoch may be). Where reports do not contain the
pass time, it is the time between two reports, or that of the first one from the start if there is only one.
"""

from __future__ import annotations

import json
import math
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
from typing import Any, NamedTuple

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.model import Fact, Measurement
from coadapt.model.measurement import PREFIX
from coadapt.planning.answer import filled, rate_factor
from coadapt.planning.problem import Option
from coadapt.planning.request import Request
from coadapt.prediction.training_log import LogReader, segments
from coadapt.wire.agent import Variable, from_line

_OWN = ("epoch", "epoch_s", "memory_bytes", "noise_scale")


class PassReport(Fact, frozen=True, kw_only=True):
    """The report of a pass, which ended ``at`` seconds after the command was started."""

    at: float
    epoch: float
    epoch_s: float | None = None
    metrics: dict[str, float] = {}
    memory_bytes: float | None = None
    #: Gradient noise scale, in examples.
    noise_scale: float | None = None


class Reader:
    """Reads the output of one run. ``patterns``: regular expressions by name; ``metric``: the one whose line ends a pass."""

    def __init__(self, metric: str | None, patterns: Mapping[str, re.Pattern[str]] | None = None) -> None:
        self._reported: list[PassReport] = []
        #: Passes that the lines of a known log format tell; they count where the run reports none itself.
        self._logged: list[PassReport] = []
        self._log = LogReader()
        self._results: dict[str, float] = {}
        self._metric, self._patterns = metric, patterns or {}
        #: Metrics that the agent has said last.
        self._said: dict[str, float] = {}

    def line(self, text: str, at: float) -> None:
        """Read a line of output, printed ``at`` seconds after the start."""
        report = _by_hand(text, at)
        if report is None and text.startswith(PREFIX):
            report = self._by_agent(text, at)
        if report is None and self._patterns:
            report = self._matched(text, at)
        if report is not None:
            self._reported.append(report)
        elif not self._reported:
            self._from_log(text, at)

    @property
    def passes(self) -> list[PassReport]:
        """The reports of passes so far."""
        return self._reported or self._logged

    def _from_log(self, text: str, at: float) -> None:
        readings = [found for part in segments(text) if (found := self._log.line(part, at)) is not None]
        if not readings:
            return
        for found in readings:
            known = {name: value for name, value in found.metrics.items() if math.isfinite(value)}
            self._results = self._results | known
        state = self._log.progress()
        done = None if state is None else state.epochs_done
        if done is None:
            return
        whole = math.floor(done + 1e-9)
        if whole > (self._logged[-1].epoch if self._logged else 0):
            self._logged.append(PassReport(at=at, epoch=float(whole), epoch_s=readings[-1].epoch_s))
        if self._logged:
            # results of a pass are often printed after its last batch
            self._logged[-1] = msgspec.structs.replace(self._logged[-1], metrics=self._results)

    def _by_agent(self, text: str, at: float) -> PassReport | None:
        report = from_line(text)
        if report is None or not report.measurements:
            return None
        timed = [m for m in report.measurements if m.count > 0 and m.step_s > 0]
        last = report.measurements[-1]
        if last.epoch is None or last.epoch <= 0:
            return None
        before = self._reported[-1].epoch if self._reported else 0.0
        if last.epoch <= before and self._reported:
            return None
        metrics = {name: value for name, value in last.metrics.items() if name != "memory_bytes"}
        return PassReport(
            at=at,
            epoch=last.epoch,
            epoch_s=_pass_s(timed[-1], last) if timed else None,
            metrics=self._new(metrics, last.epoch),
            memory_bytes=last.metrics.get("memory_bytes"),
            noise_scale=_noise(last),
        )

    def _new(self, metrics: dict[str, float], epoch: float) -> dict[str, float]:
        """Without those that are only said again: in the midst of a pass they are of the one before."""
        said, self._said = self._said, metrics
        if math.isclose(epoch, round(epoch)):
            return metrics
        return {name: value for name, value in metrics.items() if value != said.get(name)}

    def _matched(self, text: str, at: float) -> PassReport | None:
        found: dict[str, Any] = {}
        for name, pattern in self._patterns.items():
            match = pattern.search(text)
            if match is not None:
                try:
                    found[name] = float(match[1])
                except ValueError:
                    continue
        ends = found.keys() & ({self._metric} if self._metric in self._patterns else {"epoch_s", "epoch"})
        return _report({"epoch": len(self._reported) + 1, **found}, at) if ends else None


def _by_hand(text: str, at: float) -> PassReport | None:
    if not text.startswith(PREFIX):
        return None
    try:
        found = json.loads(text[len(PREFIX) :])
    except ValueError:
        return None
    return _report(found, at) if isinstance(found, dict) and "epoch" in found else None


def _report(found: dict[str, Any], at: float) -> PassReport | None:
    numbers = {
        str(name): float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    if numbers.get("epoch", 0.0) <= 0:
        return None
    own = {name: numbers[name] for name in _OWN if name in numbers}
    return PassReport(at=at, metrics={n: v for n, v in numbers.items() if n not in _OWN}, **own)


def _pass_s(timed: Measurement, last: Measurement) -> float | None:
    """Steps of a pass x their time: ``step_s`` is a step without accumulation, of which only the last part synchronises."""
    if not last.work or not last.epoch:
        return None
    examples = last.work / last.epoch
    step_s = timed.config.accumulation * (timed.step_s - timed.sync_s) + timed.step_s
    return examples / timed.config.batch * step_s


def _noise(last: Measurement) -> float | None:
    if not last.grad_sqr or not last.grad_var or last.grad_sqr <= 0 or last.grad_var <= 0:
        return None
    return last.config.batch * last.grad_var / last.grad_sqr


def compiled(given: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """Compile the patterns of a job file, which were checked when it was read."""
    return {name: re.compile(text) for name, text in given.items()}


_TAIL = 8
_GRACE_S = 5.0
#: A pass counts as interrupted if it takes this many times the median.
_STALLED = 3.0


class Result(Fact, frozen=True, kw_only=True):
    """The result of one run: total time, pass time, time outside passes, and other reported values."""

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
    """The command reported no pass time; its last lines are in the message."""

    exit_code = 2


def run_once(
    line: str,
    environment: dict[str, str],
    *,
    metric: str | None,
    limit_s: float,
    patterns: Mapping[str, re.Pattern[str]] | None = None,
) -> Result:
    """Run a command and read its reports.

    Args:
        line: The command line.
        environment: Variables added to the environment.
        metric: Name of the metric; None: not known.
        limit_s: Seconds after which the run is stopped.
        patterns: Regular expressions that find values in its output, by name.
    """
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
    last = " | ".join(each for each in tail if each) or "it printed nothing"
    if code != 0 and not timed_out.is_set():
        raise RunFailedError(f"the command failed with exit code {code}; its last lines: {last}")
    if not reader.passes:
        why = f"was stopped after {limit_s:g} s" if timed_out.is_set() else "ended"
        raise RunFailedError(
            f'the command {why} and did not report a pass. Print \'COADAPT {{"epoch": 1, "epoch_s": ...}}\' after each pass, or a line of a known log format (docs/logs.md). Its last lines: {last}'
        )
    return result_of(reader.passes, seconds, metric)


def result_of(passes: list[PassReport], seconds: float, metric: str | None) -> Result:
    """The result of a run of ``seconds`` from its reports ``passes``; ``metric`` is the one to keep."""
    reported = [report.epoch_s for report in passes if report.epoch_s is not None]
    ends = [0.0, *(report.at for report in passes)]
    gaps = [b - a for a, b in pairwise(ends)]
    times = reported or gaps
    later = tuple(times[1:] if len(times) > 1 else times)
    middle = median(later)
    # a total is made of means; but a machine that was stopped, or a checkpoint, is no pass
    pass_s = float(fmean(each for each in later if each <= _STALLED * middle))
    if not pass_s > 0:
        raise RunFailedError(f"the command reported a pass time of {pass_s:g} s; it must be more than 0")
    setup_s = beside_s = None
    if len(reported) == len(passes):
        # what the end takes (processes that are waited for) comes before the first pass here: both are there once
        setup_s = max(passes[0].at - reported[0], 0.0) + max(seconds - passes[-1].at, 0.0)
        beside = [gap - own for gap, own in zip(gaps[1:], reported[1:], strict=True)]
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
        raise InputError(f"the command cannot be parsed ({error}): {line}") from None
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


class Command(NamedTuple):
    """A command line and its environment."""

    line: str
    environment: dict[str, str]


def filled_command(template: str, option: Option, *, epochs: int, lr: float | None, seed: int) -> Command:
    """The command of a short run of one option.

    Args:
        template: The training command with placeholders.
        option: The option to run.
        epochs: Passes to make.
        lr: Learning rate; None: the script's own.
        seed: Random seed.
    """
    line = filled(template, batch=option.batch, workers=option.replicas, epochs=epochs, lr=lr, seed=seed)
    environment = {
        Variable.BATCH_SIZE: str(option.batch),
        Variable.WORKERS: str(option.replicas),
        Variable.EPOCHS: str(epochs),
        Variable.SEED: str(seed),
        Variable.JOB: "plan",
        Variable.BATCH_RULE: "fixed",
        Variable.CHECKPOINTS: "",
    }
    if lr is not None:
        environment[Variable.LR] = f"{lr:g}"
    return Command(line, environment)


def rate_of(request: Request, spec: Mapping[str, Any], option: Option, initial: int) -> float | None:
    """Learning rate of a short run; None if none is known.

    The efficiency of a batch size is not known before it was measured, so adascale starts with the square root.

    Args:
        request: What the user asked for.
        spec: The job file.
        option: The option to run.
        initial: The smallest batch size.
    """
    lr = request.lr if request.lr is not None else spec.get("lr")
    if lr is None:
        return None
    rule = request.lr_rule or str(spec.get("lr_rule") or "linear")
    return float(lr) * rate_factor("sqrt" if rule == "adascale" else rule, option.batch / initial)

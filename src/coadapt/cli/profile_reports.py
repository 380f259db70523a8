"""What a training command tells on standard output, line by line, whoever wrote it.

    COADAPT {"epoch": 1, "epoch_s": 2.4, "val_acc": 0.81, "memory_bytes": 5e9, "noise_scale": 300}    after each pass, by hand
    COADAPT {"measurements": [...]}      by ``coadapt.torch``: step times, gradient statistics, metrics (``job.report(memory_bytes=...)``, too)
    epoch 3 took 2.4s acc=0.81           by regular expressions of the specification; a line that tells the metric ends a pass

All become a ``PassReport``. What is missing (everything but the epoch may be) is None.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from coadapt.errors import InputError
from coadapt.model import Fact, Measurement
from coadapt.wire.agent import PREFIX, from_line

_OWN = ("epoch", "epoch_s", "memory_bytes", "noise_scale")


class PassReport(Fact, frozen=True, kw_only=True):
    """A pass has ended, ``at`` seconds after the command was started."""

    at: float
    epoch: float
    epoch_s: float | None = None
    metrics: dict[str, float] = {}
    memory_bytes: float | None = None
    #: Gradient noise scale, in examples.
    noise_scale: float | None = None


class Reader:
    """Of one run. ``patterns``: regular expressions by name; ``metric``: the one whose line ends a pass."""

    def __init__(self, metric: str | None, patterns: Mapping[str, re.Pattern[str]] | None = None) -> None:
        self.passes: list[PassReport] = []
        self._metric, self._patterns = metric, patterns or {}
        #: Metrics that the agent has said last.
        self._said: dict[str, float] = {}

    def line(self, text: str, at: float) -> None:
        """Takes what a line tells."""
        report = _by_hand(text, at)
        if report is None and text.startswith(PREFIX):
            report = self._by_agent(text, at)
        if report is None and self._patterns:
            report = self._matched(text, at)
        if report is not None:
            self.passes.append(report)

    def _by_agent(self, text: str, at: float) -> PassReport | None:
        report = from_line(text)
        if report is None or not report.measurements:
            return None
        timed = [m for m in report.measurements if m.count > 0 and m.step_s > 0]
        last = report.measurements[-1]
        if last.epoch is None or last.epoch <= 0:
            return None
        before = self.passes[-1].epoch if self.passes else 0.0
        if last.epoch <= before and self.passes:
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
        return _report({"epoch": len(self.passes) + 1, **found}, at) if ends else None


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

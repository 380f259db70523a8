"""What a job tells on standard output, as measurements: ``COADAPT {json}`` lines, and lines that its ``metrics`` match.

A line holds a report of our agent (``wire.agent``), or what a script writes by hand: ``{"epoch": 3, "step_time": 0.1,
"batch": 64, "val_acc": 0.9}``. Numbers not known by name are metrics. What is not understood is passed over.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from coadapt.cluster.patterns import Patterns
from coadapt.cluster.protocol import Launch
from coadapt.model import Measurement, Placement
from coadapt.model.measurement import Configuration
from coadapt.wire.agent import PREFIX, Report, decode

log = logging.getLogger(__name__)
#: Most measurements of one attempt in a second; a job that says more is not listened to for the rest of it.
MOST_PER_S = 20
_KNOWN = frozenset(
    (
        *("epoch", "epochs", "step", "steps", "step_time", "step_s", "batch", "batch_size", "count"),
        *("work", "progress", "time", "epoch_s", "metric", "value", "metrics"),
        *("job", "attempt", "number", "version", "in_place", "rank"),
    )
)
_MOST_METRICS = 64
_NAME = re.compile(r"[A-Za-z_][\w./@-]{0,63}")


class Readings:
    """Of one attempt; ``read`` is given each line of its first replica once, and the time."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self._patterns = launch, Patterns(launch.metrics)
        #: The agent said that it can be resized in place.
        self.in_place = False
        self._number = 0
        self._step: float | None = None
        self._second, self._said = float("-inf"), 0

    def read(self, lines: Iterable[str], placement: Placement, now: float) -> list[Measurement]:
        """What the lines tell."""
        found: list[Measurement] = []
        for line in lines:
            if line.startswith(PREFIX):
                found += self._ours(line[len(PREFIX) :], placement)
            elif self._patterns and (metrics := self._patterns.match(line)):
                found.append(Measurement(config=self._config(placement, 0), count=0, metrics=metrics))
        return self._bounded(found, now)

    def _bounded(self, found: list[Measurement], now: float) -> list[Measurement]:
        if now - self._second >= 1.0:
            self._second, self._said = now, 0
        kept = found[-max(MOST_PER_S - self._said, 0) :] if self._said < MOST_PER_S else []
        self._said += len(kept)
        return kept

    def _ours(self, text: str, placement: Placement) -> list[Measurement]:
        try:
            said = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return []
        if not isinstance(said, dict):
            return []
        if said.get("in_place") is True:
            self.in_place = True
        if "measurements" in said:
            return self._report(text)
        found = self._by_hand(said, placement)
        return [found] if found is not None else []

    def _report(self, text: str) -> list[Measurement]:
        try:
            report: Report = decode(text)
        except msgspec.DecodeError:
            return []
        if report.number and report.number <= self._number:
            return []  # said before
        self._number = max(self._number, report.number)
        return [m for m in report.measurements if _sound(m)]

    def _by_hand(self, said: Mapping[str, Any], placement: Placement) -> Measurement | None:
        number = {
            key: value for key, value in ((k, _number(v)) for k, v in said.items()) if value is not None
        }
        metrics = _metrics(said, number)
        batch = int(number.get("batch", number.get("batch_size", self.launch.total_batch)))
        step_s = number.get("step_time", number.get("step_s", 0.0))
        count = self._count(number)
        timed = step_s > 0 and batch > 0
        epoch, share = number.get("epoch"), _share(number)
        if epoch is None and self.launch.epochs is not None and share is not None:
            epoch = share * self.launch.epochs
        if epoch is None and share is None and not metrics and not timed and "work" not in number:
            return None
        return Measurement(
            config=self._config(placement, batch),
            count=count if timed else 0,
            step_s=step_s if timed else 0.0,
            work=number.get("work"),
            epoch=epoch if epoch is None or epoch >= 0 else None,
            share=share,
            metrics=metrics,
        )

    def _count(self, number: Mapping[str, float]) -> int:
        """Steps that a time is the mean of: those since the last line, where lines are numbered."""
        step, before = number.get("step"), self._step
        self._step = step if step is not None else before
        told = number.get("count")
        if told is None and step is not None and before is not None:
            told = step - before
        return int(min(max(told or 1, 1), 1 << 31))

    def _config(self, placement: Placement, batch: int) -> Configuration:
        replicas = max(placement.replicas, 1)
        return Configuration(
            nodes=max(placement.nodes, 1),
            replicas=replicas,
            atomic_batch=max(-(-min(batch, 1 << 40) // replicas), 1),
            gpu_type=placement.gpu_type or "gpu",
        )


def _metrics(said: Mapping[str, Any], number: Mapping[str, float]) -> dict[str, float]:
    nested = said.get("metrics")
    found = {k: v for k, v in number.items() if k not in _KNOWN}
    if isinstance(nested, dict):
        found.update({str(k): v for k, v in ((k, _number(v)) for k, v in nested.items()) if v is not None})
    if isinstance(said.get("metric"), str) and "value" in number:
        found[said["metric"]] = number["value"]
    named = [(name, value) for name, value in found.items() if _NAME.fullmatch(name)]
    return dict(named[:_MOST_METRICS])


def _share(number: Mapping[str, float]) -> float | None:
    share = number.get("progress")
    if share is None and number.get("steps", 0) > 0 and "step" in number:
        share = number["step"] / number["steps"]
    if share is None and number.get("epochs", 0) > 0 and "epoch" in number:
        share = number["epoch"] / number["epochs"]
    return share if share is not None and 0 <= share <= 1 else None


def _sound(measurement: Measurement) -> bool:
    """Numbers that mean something: what comes from a job is not to be believed."""
    config = measurement.config
    counts = (config.nodes, config.replicas, config.atomic_batch, config.accumulation + 1)
    times = (measurement.step_s, measurement.step_var, measurement.sync_s, measurement.sync_var)
    others = (measurement.grad_sqr, measurement.grad_var, measurement.work, measurement.epoch)
    share = measurement.share
    return (
        all(0 < each < 1 << 40 for each in counts)
        and 0 <= measurement.count < 1 << 40
        and all(0 <= each < math.inf for each in times)
        and all(each is None or 0 <= each < math.inf for each in others)
        and (share is None or 0 <= share <= 1)
        and all(0 <= each < math.inf for each in measurement.overheads_s.values())
        and len(measurement.metrics) <= _MOST_METRICS
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e300 else None

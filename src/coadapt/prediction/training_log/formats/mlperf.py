"""MLPerf: ``:::MLLOG {json}`` (since v0.6) and ``:::MLPv0.5.0 resnet 1543785294.9 (file:line) train_epoch: 3``.

A run ends at its target, so these logs declare no total. Counters are epochs, samples or steps, as the benchmark has them. BERT and
GPT-3 write samples (or tokens) under ``epoch_num``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from coadapt.prediction.training_log.formats._mapping import first, whole
from coadapt.prediction.training_log.patterns import number
from coadapt.prediction.training_log.reading import Reading

_OLD = re.compile(
    r":::MLPv0\.\d\.\d (\w{1,40}) (\d{9,11}\.\d{1,9}) \([^)]{0,200}\) (\w{1,60}) ?:? ?(.{0,300})"
)
_MARK = ":::MLLOG "
#: "Epochs" beyond this are samples.
_MOST_EPOCHS = 20_000


class MLPerf:
    """Reads ``:::MLLOG`` lines."""

    name: ClassVar[str] = "mlperf"
    order: ClassVar[int] = 1
    marks: ClassVar[tuple[str, ...]] = (":::ML",)

    def __init__(self) -> None:
        self._began: float | None = None
        self._batch: float | None = None
        self._most = 0.0

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it tells no progress."""
        at = line.find(_MARK)
        if at < 0:
            return self._old(line)
        try:
            said = json.loads(line[at + len(_MARK) :])
        except (ValueError, RecursionError):
            return None
        if not isinstance(said, dict):
            return None
        about = said.get("metadata")
        time_ms = number(said.get("time_ms"))
        stamp_s = None if time_ms is None else time_ms / 1000
        return self._read(
            str(said.get("key")), said.get("value"), about if isinstance(about, dict) else {}, stamp_s
        )

    def _old(self, line: str) -> Reading | None:
        found = _OLD.search(line)
        if not found:
            return None
        key, text = found[3], found[4].strip()
        value: Any = None
        try:
            value = json.loads(text) if text else None
        except (ValueError, RecursionError):
            value = number(text.strip('"').split(",")[0])
        if isinstance(value, str):
            value = number(value.split(",")[0])
        about: dict[str, Any] = {}
        if isinstance(value, dict):
            about = {"epoch_num": value.get("epoch")}
            value = value.get("value")
        if key == "train_epoch":
            key, about = "epoch_start", {"epoch_num": number(value)}
        return self._read(key, value, about, float(found[2]))

    def _read(self, key: str, value: Any, about: Mapping[str, Any], stamp_s: float | None) -> Reading | None:
        if key in ("run_start", "train_loop"):
            self._began, self._most = stamp_s, 0.0
            return Reading(form="MLPerf", samples=0.0, stamp_s=stamp_s, label="start")
        if key == "run_stop":
            return Reading(form="MLPerf", stamp_s=stamp_s, ended=True)
        if key == "global_batch_size":
            self._batch = number(value)
            return Reading(form="MLPerf", batch=self._batch)
        if self._began is None:
            return None
        metrics = self._metrics(key, value)
        samples, step = first(about, "samples_count", "sample_count"), whole(about, "step", "step_num")
        epoch = first(about, "epoch_num")
        if key == "tracked_stats" and samples is None:
            # some count samples under "step" here; the lines of blocks count them, too
            step = None
        if key == "block_start":
            # samples here are those of the block that begins
            samples, epoch = None, first(about, "first_epoch_num")
            epoch = None if epoch is None or epoch > _MOST_EPOCHS else epoch - 1
        if key == "epoch_start" and epoch is not None and epoch <= _MOST_EPOCHS:
            epoch -= 1
        if samples is None and epoch is not None and epoch > _MOST_EPOCHS:
            samples, epoch = epoch, None
        if samples is None and step is not None and epoch is None:
            return Reading(form="MLPerf", step=step, overall=True, stamp_s=stamp_s, metrics=metrics)
        if samples is None and (epoch is None or epoch < 0):
            return (
                Reading(form="MLPerf", stamp_s=stamp_s, validation=True, metrics=metrics) if metrics else None
            )
        if samples is not None and samples < self._most:
            return Reading(form="MLPerf", stamp_s=stamp_s, validation=True, metrics=metrics)
        if samples is not None:
            self._most = samples
            return Reading(
                form="MLPerf", samples=samples, stamp_s=stamp_s, batch=self._batch, metrics=metrics
            )
        return Reading(
            form="MLPerf", epoch=epoch, overall=True, stamp_s=stamp_s, batch=self._batch, metrics=metrics
        )

    def _metrics(self, key: str, value: Any) -> dict[str, float]:
        if key == "tracked_stats" and isinstance(value, dict):
            named = ((str(name), number(each)) for name, each in list(value.items())[:40])
            return {name: each for name, each in named if each is not None and "time" not in name}
        if (
            key in ("eval_accuracy", "train_loss", "eval_loss", "eval_error")
            and (found := number(value)) is not None
        ):
            return {key: found}
        return {}

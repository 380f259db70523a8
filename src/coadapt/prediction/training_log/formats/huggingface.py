"""Hugging Face Trainer: ``{'loss': 1.2, 'learning_rate': 5e-05, 'epoch': 0.5}`` beside its bar, and other mappings with an epoch (DETR's and MAE's ``log.txt``, Torch's ``json_stats``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from coadapt.prediction.training_log.formats._mapping import first, mapping, numbers, whole
from coadapt.prediction.training_log.patterns import stamp
from coadapt.prediction.training_log.reading import Reading


class HuggingFace:
    """Reads lines that are a mapping with an epoch."""

    name: ClassVar[str] = "huggingface"
    order: ClassVar[int] = 15
    marks: ClassVar[tuple[str, ...]] = ("'epoch'", '"epoch"')

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if not line.endswith("}"):
            return None
        said = mapping(line)
        if said is None or "epoch" not in said:
            return None
        epoch = first(said, "epoch")
        if epoch is None:
            return None
        if "train_runtime" in said:
            return Reading(
                form="dict lines", epoch=epoch, run_s=first(said, "train_runtime"), overall=True, ended=True
            )
        metrics = numbers(said)
        epoch_s = _epoch_s(said)
        step = whole(said, "step", "global_step", "num_updates")
        return Reading(
            form="dict lines",
            epoch=epoch,
            epochs=first(said, "epochs", "max_epoch", "max_epochs", "num_epochs"),
            step=step,
            overall=epoch_s is None,
            epoch_s=epoch_s,
            epoch_end=epoch_s is not None,
            run_s=first(said, "wall", "elapsed", "elapsed_s"),
            stamp_s=stamp(line[: line.find("{")]),
            validation=any(key.startswith("eval") for key in metrics),
            metrics=metrics,
        )


def _epoch_s(said: Mapping[str, Any]) -> float | None:
    """Seconds of a whole epoch, training and test together."""
    train = first(said, "epoch_time", "train_time", "epoch_s")
    return None if train is None else train + (first(said, "test_time", "val_time") or 0.0)

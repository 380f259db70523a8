"""A callback for Lightning: reports, and on SIGTERM a checkpoint and exit code 143.

callback = CoadaptCallback("checkpoints")               # under a scheduler: the directory it gives
Trainer(..., callbacks=[callback]).fit(model, loader, ckpt_path=callback.last_checkpoint())
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from coadapt.errors import InputError
from coadapt.torch.elastic.coordinator import directory_for
from coadapt.torch.integrations._hooks import TrainerMonitor

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:  # pragma: no cover - a machine without it
        raise InputError("CoadaptCallback needs Lightning: pip install lightning") from error

log = logging.getLogger(__name__)
_NAME = "coadapt.ckpt"


class CoadaptCallback(Callback):
    """Reports step times, gradient statistics and metrics to the scheduler; on SIGTERM saves and exits."""

    def __init__(
        self, checkpoints: str | os.PathLike[str] | None = None, *, noise_budget: float = 0.02
    ) -> None:
        self.directory = directory_for(checkpoints)
        self.monitor: TrainerMonitor | None = None
        self._noise_budget = noise_budget
        self._steps = 0
        self._began = time.perf_counter()

    def last_checkpoint(self) -> str | None:
        """The checkpoint to resume from; None at the first start."""
        path = self._path()
        return str(path) if path is not None and path.exists() else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """See ``Callback``."""
        loader = trainer.train_dataloader
        batch = getattr(loader, "batch_size", None) or 1
        try:
            examples = len(loader.dataset)
        except (AttributeError, TypeError):
            examples = None  # a stream
        self.monitor = TrainerMonitor(
            batch=batch,
            accumulation=trainer.accumulate_grad_batches - 1,
            examples=examples,
            noise_budget=self._noise_budget,
        )
        self._steps = trainer.global_step
        self.monitor.overheads_s["setup"] = time.perf_counter() - self._began
        # Lightning's own handler does not save a checkpoint of this step
        self.monitor.install_signal_handler()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """See ``Callback``."""
        self._monitor.interrupted()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """See ``Callback``."""
        self._monitor.gradient(pl_module.parameters)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record a pass or a step, and stop if SIGTERM arrived.

        Lightning passes ``trainer``, ``pl_module``, ``outputs``, ``batch`` and ``batch_idx``; only the first and the
        last are used.
        """
        if trainer.global_step == self._steps:
            self._monitor.passed()
            return
        self._steps = trainer.global_step
        self._monitor.add_metrics(trainer.callback_metrics)
        progress = self._progress(trainer, batch_idx)
        self._monitor.stepped(**progress)
        if self._monitor.stopping():
            self._save(trainer)
            self._monitor.restore_signal_handler()
            self._monitor.leave(**progress)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """See ``Callback``."""
        if self.monitor is not None:
            self.monitor.add_metrics(trainer.callback_metrics)
            self.monitor.interrupted()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """See ``Callback``."""
        self._monitor.restore_signal_handler()
        self._monitor.add_metrics(trainer.callback_metrics)
        self._monitor.flush(**self._progress(trainer, -1), last=True)

    @property
    def _monitor(self) -> TrainerMonitor:
        assert self.monitor is not None, "on_train_start comes first"
        return self.monitor

    def _path(self) -> Path | None:
        return self.directory / _NAME if self.directory is not None else None

    def _save(self, trainer: Any) -> None:
        path = self._path()
        if path is None:
            if self._monitor.place.first:
                log.warning(
                    "stopping without a checkpoint directory: all work is lost; set CoadaptCallback(checkpoints)"
                )
            return
        # all replicas call it; a kill meanwhile leaves the previous file intact
        scratch = path.with_name(_NAME + ".tmp")
        trainer.save_checkpoint(str(scratch))
        if self._monitor.place.first:
            scratch.replace(path)
        trainer.strategy.barrier("coadapt")

    def _progress(self, trainer: Any, batch_idx: int) -> dict[str, float | None]:
        """The progress of training in epochs, as Lightning counts them."""
        try:
            done = (batch_idx + 1) / float(trainer.num_training_batches)
            epoch = float(trainer.current_epoch) + (done if 0 < done <= 1 else 0.0)
            return {"epoch": epoch, "work": epoch * len(trainer.train_dataloader.dataset)}
        except (AttributeError, TypeError, ZeroDivisionError):
            return {"epoch": float(trainer.current_epoch), "work": None}  # a stream

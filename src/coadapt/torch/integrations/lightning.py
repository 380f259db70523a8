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

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:  # pragma: no cover - a machine without it
        raise InputError("the callback for Lightning needs it: pip install lightning") from error

from coadapt.torch.elastic import directory_for
from coadapt.torch.integrations.watch import Watch

log = logging.getLogger(__name__)
_NAME = "coadapt.ckpt"


class CoadaptCallback(Callback):
    """Step times, gradient statistics and metrics for the scheduler; saves and leaves when told to."""

    def __init__(
        self, checkpoints: str | os.PathLike[str] | None = None, *, noise_budget: float = 0.02
    ) -> None:
        self.directory = directory_for(checkpoints)
        self.watch: Watch | None = None
        self._noise_budget = noise_budget
        self._steps = 0
        self._began = time.perf_counter()

    def last_checkpoint(self) -> str | None:
        """What to go on from; None at the first start."""
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
        self.watch = Watch(
            batch=batch,
            accumulation=trainer.accumulate_grad_batches - 1,
            examples=examples,
            noise_budget=self._noise_budget,
        )
        self._steps = trainer.global_step
        self.watch.overheads_s["setup"] = time.perf_counter() - self._began
        # Lightning's own handler lets training go on to no checkpoint of this step
        self.watch.listen()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """See ``Callback``."""
        self._watch.interrupted()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """See ``Callback``."""
        self._watch.gradient(pl_module.parameters)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """See ``Callback``."""
        if trainer.global_step == self._steps:
            self._watch.passed()
            return
        self._steps = trainer.global_step
        self._watch.saw(trainer.callback_metrics)
        where = self._where(trainer, batch_idx)
        self._watch.stepped(**where)
        if self._watch.stopping():
            self._save(trainer)
            self._watch.deafen()
            self._watch.leave(**where)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """See ``Callback``."""
        if self.watch is not None:
            self.watch.saw(trainer.callback_metrics)
            self.watch.interrupted()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """See ``Callback``."""
        self._watch.deafen()
        self._watch.saw(trainer.callback_metrics)
        self._watch.flush(**self._where(trainer, -1), last=True)

    @property
    def _watch(self) -> Watch:
        assert self.watch is not None, "on_train_start comes first"
        return self.watch

    def _path(self) -> Path | None:
        return self.directory / _NAME if self.directory is not None else None

    def _save(self, trainer: Any) -> None:
        path = self._path()
        if path is None:
            if self._watch.place.first:
                log.warning("told to stop; there is no checkpoint directory, so the work is lost")
            return
        # all replicas call it; a kill in the middle leaves the file before
        scratch = path.with_name(_NAME + ".tmp")
        trainer.save_checkpoint(str(scratch))
        if self._watch.place.first:
            scratch.replace(path)
        trainer.strategy.barrier("coadapt")

    def _where(self, trainer: Any, batch_idx: int) -> dict[str, float | None]:
        """Where training stands, in Lightning's own count of epochs."""
        try:
            done = (batch_idx + 1) / float(trainer.num_training_batches)
            epoch = float(trainer.current_epoch) + (done if 0 < done <= 1 else 0.0)
            return {"epoch": epoch, "work": epoch * len(trainer.train_dataloader.dataset)}
        except (AttributeError, TypeError, ZeroDivisionError):
            return {"epoch": float(trainer.current_epoch), "work": None}  # a stream

"""A callback for Hugging Face's Trainer: reports, and on SIGTERM a checkpoint and exit code 143.

trainer = Trainer(..., callbacks=[CoadaptCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint(trainer.args.output_dir))
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from coadapt.errors import InputError
from coadapt.torch.integrations._hooks import TrainerMonitor

try:
    from transformers import TrainerCallback
except ImportError as error:  # pragma: no cover - a machine without it
    raise InputError("CoadaptCallback needs transformers: pip install transformers") from error


class CoadaptCallback(TrainerCallback):
    """Reports step times, gradient statistics and metrics to the scheduler; on SIGTERM saves and exits."""

    def __init__(self, *, noise_budget: float = 0.02) -> None:
        self.monitor: TrainerMonitor | None = None
        self._noise_budget = noise_budget
        self._stopping = False
        self._examples: int | None = None
        self._began = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start to measure.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        loader = given.get("train_dataloader")
        try:
            self._examples = len(loader.dataset)  # type: ignore[union-attr]
        except (AttributeError, TypeError):
            self._examples = None  # a stream
        self.monitor = TrainerMonitor(
            batch=args.train_batch_size,
            accumulation=args.gradient_accumulation_steps - 1,
            examples=self._examples,
            noise_budget=self._noise_budget,
        )
        self.monitor.overheads_s["setup"] = time.perf_counter() - self._began
        self.monitor.install_signal_handler()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Discard the time since the last step.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        self._monitor.interrupted()

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Record an accumulation pass.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        self._monitor.passed()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take the norms of the finished gradient.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        self._monitor.gradient(given["model"].parameters)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """Record a step; if SIGTERM arrived, request a checkpoint and the end of training.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        self._monitor.stepped(**self._progress(state))
        if self._monitor.stopping():
            self._stopping = True
            control.should_save = control.should_training_stop = True
            control.should_evaluate = control.should_log = False
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        """Store the numbers in ``logs`` for the next report.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        if self.monitor is not None:
            self.monitor.add_metrics(logs or {})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **given: Any) -> None:
        """Store ``metrics`` for the next report, and discard the time that validation took.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        if self.monitor is not None:
            self.monitor.add_metrics(metrics or {})
            self.monitor.interrupted()

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Exit after the checkpoint is on disk, if SIGTERM arrived.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        self._monitor.interrupted()
        if self._stopping:
            self._monitor.restore_signal_handler()
            self._monitor.leave(**self._progress(state))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Send the last report.

        The Trainer passes its ``args``, ``state`` and ``control``; other arguments are in ``given``.
        """
        self._monitor.restore_signal_handler()
        self._monitor.flush(**self._progress(state), last=True)

    @property
    def _monitor(self) -> TrainerMonitor:
        assert self.monitor is not None, "on_train_begin comes first"
        return self.monitor

    def _progress(self, state: Any) -> dict[str, float | None]:
        """The progress of training in epochs, as the Trainer counts them."""
        epoch = None if state.epoch is None else float(state.epoch)
        known = epoch is not None and self._examples is not None
        return {"epoch": epoch, "work": epoch * self._examples if known else None}  # type: ignore[operator]


def last_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """The Trainer's newest complete checkpoint, to resume from; None if there is none."""
    found = []
    for path in Path(directory).glob("checkpoint-*"):
        number = path.name.partition("-")[2]
        try:
            # written last: a checkpoint that was cut short has none
            json.loads((path / "trainer_state.json").read_bytes())
        except (OSError, ValueError):
            continue
        if number.isdigit():
            found.append((int(number), str(path)))
    return max(found)[1] if found else None

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

try:
    from transformers import TrainerCallback
except ImportError as error:  # pragma: no cover - a machine without it
    raise InputError("the callback for Hugging Face needs transformers: pip install transformers") from error

from coadapt.torch.integrations.watch import Watch


class CoadaptCallback(TrainerCallback):
    """Step times, gradient statistics and metrics for the scheduler; saves and leaves when told to."""

    def __init__(self, *, noise_budget: float = 0.02) -> None:
        self.watch: Watch | None = None
        self._noise_budget = noise_budget
        self._stopping = False
        self._examples: int | None = None
        self._began = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        """See ``TrainerCallback``."""
        loader = told.get("train_dataloader")
        try:
            self._examples = len(loader.dataset)  # type: ignore[union-attr]
        except (AttributeError, TypeError):
            self._examples = None  # a stream
        self.watch = Watch(
            batch=args.train_batch_size,
            accumulation=args.gradient_accumulation_steps - 1,
            examples=self._examples,
            noise_budget=self._noise_budget,
        )
        self.watch.overheads_s["setup"] = time.perf_counter() - self._began
        self.watch.listen()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        """See ``TrainerCallback``."""
        self._watch.interrupted()

    def on_substep_end(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        """See ``TrainerCallback``."""
        self._watch.passed()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        """See ``TrainerCallback``."""
        self._watch.gradient(told["model"].parameters)

    def on_step_end(self, args: Any, state: Any, control: Any, **told: Any) -> Any:
        """See ``TrainerCallback``."""
        self._watch.stepped(**self._where(state))
        if self._watch.stopping():
            self._stopping = True
            control.should_save = control.should_training_stop = True
            control.should_evaluate = control.should_log = False
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **told: Any) -> None:
        """See ``TrainerCallback``."""
        if self.watch is not None:
            self.watch.saw(logs or {})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **told: Any) -> None:
        """See ``TrainerCallback``."""
        if self.watch is not None:
            self.watch.saw(metrics or {})
            self.watch.interrupted()

    def on_save(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        """See ``TrainerCallback``: the checkpoint is on the disk."""
        self._watch.interrupted()
        if self._stopping:
            self._watch.deafen()
            self._watch.leave(**self._where(state))

    def on_train_end(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        """See ``TrainerCallback``."""
        self._watch.deafen()
        self._watch.flush(**self._where(state), last=True)

    @property
    def _watch(self) -> Watch:
        assert self.watch is not None, "on_train_begin comes first"
        return self.watch

    def _where(self, state: Any) -> dict[str, float | None]:
        """Where training stands, in the Trainer's own count of epochs."""
        epoch = None if state.epoch is None else float(state.epoch)
        known = epoch is not None and self._examples is not None
        return {"epoch": epoch, "work": epoch * self._examples if known else None}  # type: ignore[operator]


def last_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """The newest checkpoint of the Trainer that is whole, to resume from; None if there is none."""
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

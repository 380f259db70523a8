"""The job as a training script sees it: ``init``, ``prepare``, ``loader``, ``epochs``, ``report``."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from coadapt.errors import InputError
from coadapt.torch import history, options, pace, sync
from coadapt.torch.averages import averaged
from coadapt.torch.batches import BatchRule, batch_rule
from coadapt.torch.board import Board
from coadapt.torch.checkpoints import Checkpoints
from coadapt.torch.data import Examples, Stream
from coadapt.torch.elastic import directory_for
from coadapt.torch.gradients import Gradients
from coadapt.torch.group import gpu_type, pick_device
from coadapt.torch.loader import Loader
from coadapt.torch.loop import Loop
from coadapt.torch.optimizer import Schedule, adam_divisors, parameters_of, teach_optimizer, teach_scaler
from coadapt.torch.place import here
from coadapt.torch.rates import RateRule, adaptive, rule_for
from coadapt.torch.sampling import Sampling


def init(
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 600.0,
    keep: int = 3,
    disk_budget_bytes: float = float("inf"),
    batch: str | BatchRule = "adaptive",
    rate: str | RateRule = "auto",
    sync: str = "ring",  # noqa: A002, RUF100 - the user's word for it
    ddp: Mapping[str, Any] | None = None,
    seed: int = 0,
    noise_budget: float = 0.02,
    sample_every: int | None = None,
    same_schedule: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | Any | None = None,
    device: str | torch.device | None = None,
) -> Job:
    """Joins the other replicas and finds the state to go on from.

    ``batch`` is a batch rule or its name (adaptive, fixed, per-gpu, adabatch, cabs, lb-bsp), ``rate`` a learning-rate rule
    (auto, adascale, sqrt, linear, legw, none), ``sync`` a synchronisation architecture. Without ``checkpoints`` the directory
    is the scheduler's, or none. ``same_schedule`` names the history.jsonl of a run to repeat. ``tensorboard`` is a directory or a
    SummaryWriter.
    """
    return Job(
        checkpoints=directory_for(checkpoints),
        checkpoint_every_s=checkpoint_every_s,
        keep=keep,
        disk_budget_bytes=disk_budget_bytes,
        batch=batch_rule(os.environ.get("COADAPT_BATCH_RULE") or batch),
        rate=rate,
        sync_name=sync,
        ddp=ddp or {},
        seed=seed,
        sampling=Sampling(noise_budget, sample_every),
        same_schedule=same_schedule or os.environ.get("COADAPT_SAME_SCHEDULE"),
        board=Board(tensorboard) if tensorboard is not None else None,
        device=device,
    )


class Job:
    """Made by ``init``. ``device`` is where tensors belong, ``rank`` and ``replicas`` say who is here."""

    def __init__(
        self,
        *,
        checkpoints: Path | None,
        checkpoint_every_s: float,
        keep: int,
        disk_budget_bytes: float,
        batch: BatchRule,
        rate: str | RateRule,
        sync_name: str,
        ddp: Mapping[str, Any],
        seed: int,
        sampling: Sampling,
        same_schedule: str | os.PathLike[str] | None,
        board: Board | None,
        device: str | torch.device | None,
    ) -> None:
        began = time.perf_counter()
        options.check_ddp(ddp)
        sync.check(sync_name)
        self._seed, self._rate = seed, rate
        place = here()
        self.device = torch.device(device) if device is not None else pick_device(place)
        kept = None
        if checkpoints is not None:
            kept = Checkpoints(checkpoints, attempt=place.attempt, keep=keep, budget_bytes=disk_budget_bytes)
        self._loop = Loop(
            place,
            self.device,
            rule=batch,
            sampling=sampling,
            sync_name=sync_name,
            ddp=ddp,
            seed=seed,
            checkpoints=kept,
            checkpoint_every_s=checkpoint_every_s,
        )
        self._training, self._elastic = self._loop.training, self._loop.elastic
        self._training.gpu_type = gpu_type(self.device)
        if same_schedule:
            self._training.history = history.History(history.load(Path(same_schedule)))
        if paced := os.environ.get("COADAPT_PACE"):
            self._training.pace = pace.load(paced, place)
        self._loop.measuring.board = board
        self._scaler: Any = None
        self._loader: Loader | None = None
        self._hooks: list[Callable[[Job], None]] = []
        self._loop.meet()
        atexit.register(self._loop.close)
        if not os.environ.get("COADAPT_JOIN"):
            # one that joins gets ready beside the others, and nobody waits for it
            self._elastic.overheads_s["setup"] = time.perf_counter() - began

    # -- what a script asks ------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This replica's number; 0 is the one that prints."""
        return self._loop.group.place.rank

    @property
    def replicas(self) -> int:
        """How many there are at present."""
        return self._loop.group.place.replicas

    @property
    def batch_size(self) -> int:
        """Total batch size at present."""
        return self._training.split.batch

    @property
    def work(self) -> float:
        """Work done, in examples at the reference batch size."""
        return self._training.ledger.work

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale, in examples; None while unknown."""
        sqr, var = self._training.noise.grad
        limits = self._training.limits
        return limits.initial * var / sqr if limits is not None and sqr > 0 else None

    @property
    def history(self) -> list[history.Entry]:
        """What was decided when, and why."""
        return list(self._training.history.entries)

    def prepare(self, model: nn.Module, optimizer: Optimizer, *others: Any) -> Any:
        """The model to call instead, the same optimizer, and whatever schedules and GradScalers are given.

        Everything is restored from the checkpoint, if there is one. Returns a tuple as long as what was given.
        """
        if self._loop.model is not None:
            raise InputError("job.prepare() was called twice; one model and one optimizer make a job")
        options.check_model(model, optimizer, replicas=self.replicas)
        preconditioned = adaptive(optimizer)
        gradients = Gradients(
            parameters_of(optimizer),
            precondition=(lambda: adam_divisors(optimizer)) if preconditioned else (lambda: None),
            loss_scale=self._loss_scale,
        )
        self._training.rule = rule_for(self._rate, optimizer)
        # restored before their methods are replaced: some optimizers rebuild themselves on loading
        ours = self._loop.take(model, optimizer, gradients)
        for number, other in enumerate(others):
            self._prepare_other(other, number)
        teach_optimizer(optimizer, self._training)
        return (ours, optimizer, *others)

    def loader(
        self,
        dataset: Any,
        batch_size: int,
        max_batch_size: int | None = None,
        per_gpu: tuple[int, int] | None = None,
        *,
        shuffle: bool | None = None,
        sampler: Any = None,
        length: int | None = None,
        **dataloader: Any,
    ) -> Loader:
        """Batches of ``dataset``; ``batch_size`` is M0, the total the script was tuned for.

        Larger ones, up to ``max_batch_size``, are used where they pay; ``per_gpu`` bounds one backward pass of one replica.
        Shuffled unless told otherwise. Other options go to DataLoader (num_workers, collate_fn, pin_memory, ...).
        """
        if self._loader is not None:
            raise InputError("job.loader() was called twice; validation data need a plain DataLoader")
        options.check_dataset(dataset, sampler, shuffle, dataloader)
        limits = options.batch_limits(batch_size, max_batch_size, per_gpu)
        if spec := os.environ.get("COADAPT_BATCH"):
            limits = options.spec_limits(spec, limits, say=self.rank == 0)
            if limits.mode == "fixed":
                self.rule = "fixed"
        data: Examples | Stream
        if isinstance(dataset, IterableDataset):
            data = Stream(dataset, length=length, collate=dataloader.get("collate_fn"))
        else:
            in_order = shuffle is False or sampler is not None
            data = Examples(
                dataset, seed=self._seed, shuffle=not in_order, sampler=sampler, options=dataloader
            )
        training = self._training
        training.limits = limits
        self._loader = Loader(training, data, limits.initial)
        training.length, training.steps_per_epoch = self._loader.length, len(self._loader)
        training.noise.steps_per_epoch = len(self._loader)
        training.length_of = data.length  # type: ignore[method-assign]
        return self._loader

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs of work from where the job stands to ``count``: each is one pass worth of work."""
        return self._bodies(count, whole_passes=False)

    def passes(self, count: int) -> Iterator[int]:
        """Whole passes through the data instead."""
        return self._bodies(count, whole_passes=True)

    def report(self, **metrics: Any) -> dict[str, float]:
        """Averages numbers over replicas, keeps them for the scheduler, and returns them.

        A pair (sum, count) is averaged exactly, however unevenly examples were divided.
        """
        found = averaged(self._loop.group, metrics)
        self._loop.state.metrics.update(found)
        return found

    def on_epoch(self, function: Callable[[Job], None]) -> Callable[[Job], None]:
        """Has ``function(job)`` called at the start of every epoch; it may set ``job.rule`` (a decorator)."""
        self._hooks.append(function)
        return function

    @property
    def rule(self) -> BatchRule:
        """The batch rule; may be replaced at any time, on all replicas alike."""
        return self._loop.adaptation.rule

    @rule.setter
    def rule(self, rule: str | BatchRule) -> None:
        self._loop.adaptation.rule = batch_rule(rule)

    def save_with(self, name: str, part: Any) -> None:
        """Another object (with state_dict and load_state_dict) to be saved and restored: an average of weights, ..."""
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise InputError(f"{name}: a {type(part).__name__} has no state_dict and load_state_dict")
        self._loop.state.add(f"own:{name}", part)

    # -- details -------------------------------------------------------------------------------------------

    def _bodies(self, count: int, *, whole_passes: bool) -> Iterator[int]:
        if self._loop.model is None or self._loader is None:
            raise InputError("call job.prepare() and job.loader() before the loop over epochs")

        def hook() -> None:
            for function in self._hooks:
                function(self)

        return self._loop.bodies(count, whole_passes=whole_passes, hook=hook)

    def _prepare_other(self, other: Any, number: int) -> None:
        if hasattr(other, "unscale_") and hasattr(other, "update"):
            self._scaler, self._training.scaled_loss = other, True
            teach_scaler(other, self._training)
            self._loop.state.add("scaler", other)
        elif hasattr(other, "step") and hasattr(other, "state_dict"):
            self._loop.state.add(f"schedule{number}", Schedule(other, self._training))
        else:
            raise InputError(
                f"job.prepare() knows no {type(other).__name__}: it takes a model, an optimizer, schedules, a GradScaler"
            )

    def _loss_scale(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0

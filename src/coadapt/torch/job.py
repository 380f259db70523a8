"""The job as a training script sees it: ``init``, ``prepare``, ``loader``, ``epochs``, ``report``."""

from __future__ import annotations

import atexit
import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from coadapt.errors import InputError
from coadapt.torch import script_errors, script_options
from coadapt.torch.batches import batch_rule
from coadapt.torch.batches._base import BatchRule
from coadapt.torch.elastic.checkpoints import Checkpoints
from coadapt.torch.elastic.coordinator import directory_for
from coadapt.torch.elastic.process_group import gpu_type, here, pick_device
from coadapt.torch.loader import Examples, Loader, Stream
from coadapt.torch.rates import adaptive, rule_for
from coadapt.torch.rates._base import RateRule
from coadapt.torch.sync import check as check_architecture
from coadapt.torch.sync._base import parameters_of
from coadapt.torch.training import decision_history, paced_device, script_frames
from coadapt.torch.training.gradients import Gradients
from coadapt.torch.training.measurements import TensorBoard
from coadapt.torch.training.metric_exchange import as_pair
from coadapt.torch.training.noise_scale import SampleSchedule
from coadapt.torch.training.script_state import ScriptState
from coadapt.torch.training.script_wrappers import (
    WorkAverage,
    WorkSchedule,
    adam_divisors,
    average_method,
    hook_optimizer,
    hook_scaler,
)
from coadapt.torch.training.training_loop import TrainingLoop
from coadapt.wire.agent import Variable


def init(
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 600.0,
    keep: int = 3,
    disk_budget_bytes: float = float("inf"),
    batch: str | BatchRule = "adaptive",
    rate: str | RateRule = "auto",
    sync: str = "ring",  # noqa: A002, RUF100 - the name that users know
    ddp: Mapping[str, Any] | None = None,
    seed: int = 0,
    noise_budget: float = 0.02,
    sample_every: int | None = None,
    same_schedule: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | Any | None = None,
    device: str | torch.device | None = None,
) -> Job:
    """Join the other replicas and restore the last checkpoint, if there is one.

    Args:
        checkpoints: Directory of checkpoints; None: the scheduler's, if there is one.
        checkpoint_every_s: Seconds between checkpoints within an epoch.
        keep: Number of checkpoints that are retained.
        disk_budget_bytes: Most bytes of all checkpoints together; the newest is always retained.
        batch: A batch rule or its name: adaptive, fixed, per-gpu, adabatch, cabs, lb-bsp.
        rate: A learning-rate rule or its name: auto, adascale, sqrt, linear, legw, none.
        sync: A synchronisation architecture: ring, ring-late, central, servers:P, async-servers:P[:S].
        ddp: Options for DistributedDataParallel.
        seed: Seed of the order of examples.
        noise_budget: Share of step time for gradient statistics.
        sample_every: A fixed interval between sampled steps instead.
        same_schedule: The history.jsonl of a run whose batch sizes and learning rates are repeated.
        tensorboard: A directory or a SummaryWriter.
        device: Where the model runs; None: this replica's GPU, else the CPU.
    """
    rule = batch_rule(os.environ.get(Variable.BATCH_RULE) or batch)
    board = TensorBoard(tensorboard) if tensorboard is not None else None
    began, options = time.perf_counter(), script_options.check_ddp(ddp or {})
    check_architecture(sync)
    place = here()
    where = torch.device(device) if device is not None else pick_device(place)
    directory, saved = directory_for(checkpoints), None
    if directory is not None:
        saved = Checkpoints(directory, attempt=place.attempt, keep=keep, budget_bytes=disk_budget_bytes)
    loop = TrainingLoop(
        place,
        where,
        rule=rule,
        sampling=SampleSchedule(noise_budget, sample_every),
        sync_name=sync,
        ddp=options,
        seed=seed,
        checkpoints=saved,
        checkpoint_every_s=checkpoint_every_s,
    )
    loop.training.gpu_type = gpu_type(where)
    if repeated := same_schedule or os.environ.get(Variable.SAME_SCHEDULE):
        decisions = decision_history.load(Path(repeated))
        loop.training.history = decision_history.DecisionHistory(decisions)
    if paced := os.environ.get(Variable.PACE):
        loop.training.pace = paced_device.load(paced, place)
    loop.measurements.board = board
    script_errors.install(lambda: loop.group)
    loop.join_and_restore()
    atexit.register(loop.close)
    if not os.environ.get(Variable.JOIN):
        # a newcomer starts while the others train: its setup delays nobody
        loop.coordinator.overheads_s["setup"] = time.perf_counter() - began
    return Job(loop, rate=rate, seed=seed)


class Job:
    """Made by ``init``. ``device`` is where tensors belong, ``rank`` is this replica among ``replicas``."""

    def __init__(self, loop: TrainingLoop, *, rate: str | RateRule, seed: int) -> None:
        """``loop`` trains; ``rate`` is the learning-rate rule or its name, ``seed`` that of the order of examples."""
        self._loop, self._training, self._rate, self._seed = loop, loop.training, rate, seed
        self.device = loop.device
        self._scaler: Any = None
        self._loader: Loader | None = None
        self._hooks: list[Callable[[Job], None]] = []
        #: A dict for numbers of the script: it is part of checkpoints and comes back after a restart.
        self.state: dict[str, Any] = {}
        loop.state.add("script state", _DictState(self.state))
        self._script = ScriptState(loop, self.state)

    # -- for the script ---------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This replica's number; 0 is the one that prints."""
        return self._loop.group.place.rank

    @property
    def replicas(self) -> int:
        """The number of replicas at present."""
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
    def step(self) -> int:
        """Optimizer steps made so far, counted in steps at the reference batch size; continues after a restart."""
        return self._training.steps_done

    @property
    def epoch(self) -> int:
        """The number of the present epoch."""
        return self._training.ledger.epoch

    @property
    def stepped(self) -> bool:
        """Whether the optimizer has made a step with the present batch; False where gradients are accumulated."""
        return self._training.stepped

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale, in examples; None while unknown."""
        sqr, var = self._training.noise.grad
        limits = self._training.limits
        return limits.initial * var / sqr if limits is not None and sqr > 0 else None

    @property
    def history(self) -> list[decision_history.Decision]:
        """All decisions on the batch size, with their reasons."""
        return list(self._training.history.entries)

    def prepare(self, model: nn.Module, optimizer: Optimizer | None = None, *others: Any) -> Any:
        """Prepare a model, its optimizer, and any schedules, averages of parameters and a GradScaler (``others``) for training.

        A DataLoader among them becomes ``job.loader(...)`` with its dataset, batch size, order and options. Everything is restored from the
        checkpoint, if there is one. Returns the model to call instead, and the other arguments.
        """
        if self._loop.model is not None:
            raise InputError("job.prepare() was called twice; a job has one model and one optimizer")
        if optimizer is None:
            raise InputError(
                "job.prepare() needs an optimizer: job.prepare(model, optimizer); a step by hand is torch.optim.SGD's"
            )
        script_options.check_model(model, optimizer, replicas=self.replicas)
        script_options.check_others(others)
        preconditioned = adaptive(optimizer)
        gradients = Gradients(
            parameters_of(optimizer),
            precondition=(lambda: adam_divisors(optimizer)) if preconditioned else (lambda: None),
            loss_scale=self._loss_scale,
        )
        self._training.rule = rule_for(self._rate, optimizer)
        # restored before methods are replaced: some optimizers rebuild themselves when they load their state
        ours = self._loop.attach(model, optimizer, gradients)
        self._script.prepare(model, optimizer)
        # numbered as if there were no loader: a schedule is found in a checkpoint by its number
        others = tuple(self._own_loader(each) if isinstance(each, DataLoader) else each for each in others)
        for number, other in enumerate(each for each in others if each is not self._loader):
            self._prepare_other(other, number)
        hook_optimizer(optimizer, self._training)
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
        """Batches of ``dataset`` for the training loop.

        Args:
            dataset: A dataset with a length and an index, or an IterableDataset.
            batch_size: M0: the total batch size that the script was tuned for.
            max_batch_size: The largest total batch size, used where it is faster; None: ``batch_size``.
            per_gpu: Bounds on the examples in one backward pass of one replica.
            shuffle: False: examples in their own order.
            sampler: The order of examples, instead of shuffling.
            length: Examples of an IterableDataset.
            **dataloader: Options for DataLoader (num_workers, collate_fn, pin_memory, ...).
        """
        if self._loader is not None:
            raise InputError("job.loader() was called twice; use a plain DataLoader for validation data")
        script_options.check_dataset(dataset, sampler, shuffle, dataloader)
        limits = script_options.batch_limits(batch_size, max_batch_size, per_gpu)
        if spec := os.environ.get(Variable.BATCH):
            limits = script_options.spec_limits(spec, limits, warn=self.rank == 0)
            if limits.mode == "fixed":
                self.rule = "fixed"
        multiple = limits.initial if dataloader.pop("drop_last", False) else 1
        # workers end with their pass; the order has a generator of its own
        for name in ("persistent_workers", "generator"):
            dataloader.pop(name, None)
        data: Examples | Stream
        if isinstance(dataset, IterableDataset):
            data = Stream(dataset, length=length, collate=dataloader.get("collate_fn"))
            if data.stateful:
                self._loop.state.add("stream", data)
        else:
            in_order = shuffle is False or sampler is not None
            data = Examples(
                dataset,
                seed=self._seed,
                shuffle=not in_order,
                sampler=sampler,
                options=dataloader,
                multiple=multiple,
                length=length,
            )
        training = self._training
        training.limits = limits
        self._loader = Loader(self._loop, data, limits.initial)
        training.length, training.steps_per_epoch = self._loader.length, len(self._loader)
        training.noise.steps_per_epoch = len(self._loader)
        self._script.data = data
        self._loader.state_unchanged = self._state_unchanged
        return self._loader

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, up to ``count``; an epoch is as much work as one pass at M0."""
        return self._epochs(count, whole_passes=False)

    def passes(self, count: int) -> Iterator[int]:
        """Yield the numbers of the remaining passes, up to ``count``: whole passes through the data."""
        return self._epochs(count, whole_passes=True)

    def steps(self, max_steps: int) -> Iterator[Any]:
        """Yield batches of ``job.loader(...)`` up to ``max_steps`` steps at the reference batch size, pass after pass, without epochs."""
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise InputError(f"job.steps(max_steps={max_steps!r}): it must be a whole number of at least 1")
        if self._loader is None:
            raise InputError("call job.prepare() and job.loader() before the loop over steps")
        loader, training = self._loader, self._training
        training.goal_work = max_steps * training.length / training.steps_per_epoch
        loader.repeats_ends = False
        for _ in self._epochs(-(-max_steps // len(loader)), whole_passes=False):
            yield from loader

    def report(self, **metrics: Any) -> Mapping[str, float]:
        """Average numbers over replicas, report them to the scheduler, and return them.

        A pair (sum, count) is averaged exactly, however unevenly examples were divided. The averages are complete when they are read; where only
        some replicas report, they are those replicas'.
        """
        pairs = {name: as_pair(name, value) for name, value in sorted(metrics.items())}
        found = self._loop.metrics.report(script_frames.calling_line(), pairs)
        own = {name: total / count if count else 0.0 for name, (total, count) in pairs.items()}
        self._loop.state.metrics.update(own if self.replicas > 1 else found)
        return found

    def on_epoch(self, function: Callable[[Job], None]) -> Callable[[Job], None]:
        """Decorator: call ``function(job)`` at the start of every epoch; it may set ``job.rule``."""
        self._hooks.append(function)
        return function

    @property
    def rule(self) -> BatchRule:
        """The batch rule; may be replaced at any time, by the same one on all replicas."""
        return self._loop.decisions.rule

    @rule.setter
    def rule(self, rule: str | BatchRule) -> None:
        self._loop.decisions.rule = batch_rule(rule)

    def save_with(self, name: str, part: Any) -> None:
        """Save ``part`` in checkpoints under ``name``: any object with state_dict and load_state_dict, such as averaged weights."""
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise InputError(f"{name}: a {type(part).__name__} has no state_dict and load_state_dict")
        self._script.saved.append(part)
        self._loop.state.add(f"own:{name}", part)

    # -- internal ------------------------------------------------------------------------------------------

    def _epochs(self, count: int, *, whole_passes: bool) -> Iterator[int]:
        if self._loop.model is None or self._loader is None:
            raise InputError("call job.prepare() and job.loader() before the loop over epochs")

        def hook() -> None:
            self._script.begin_epoch()
            for function in self._hooks:
                function(self)

        self._script.begin()
        return self._loop.epochs(count, whole_passes=whole_passes, hook=hook)

    @contextmanager
    def _state_unchanged(self) -> Iterator[None]:
        before = copy.deepcopy(self.state)
        try:
            yield
        finally:
            self.state.clear()
            self.state.update(before)

    def _own_loader(self, given: DataLoader[Any]) -> Loader:
        dataset, batch_size, options = script_options.loader_options(given)
        return self.loader(dataset, batch_size, **options)

    def _prepare_other(self, other: Any, number: int) -> None:
        if hasattr(other, "unscale_") and hasattr(other, "update"):
            self._scaler, self._training.scaled_loss = other, True
            hook_scaler(other, self._training)
            self._loop.state.add("scaler", other)
        elif hasattr(other, "step") and hasattr(other, "state_dict"):
            self._script.schedules.append(other)
            self._loop.state.add(f"schedule{number}", WorkSchedule(other, self._training, self._agreed))
        elif average_method(other):
            self._script.saved.append(other)
            self._loop.state.add(f"average{number}", WorkAverage(other, self._training))
        else:
            raise InputError(
                f"job.prepare() cannot use a {type(other).__name__}: it takes a model, an optimizer, schedules, averages of "
                "parameters and a GradScaler"
            )

    def _agreed(self, metric: Any) -> float:
        """A number that decides about the learning rate: the same on all replicas."""
        pairs = {"metric": as_pair("metric", metric)}
        return self._loop.metrics.report(script_frames.calling_line(), pairs)["metric"]

    def _loss_scale(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0


class _DictState:
    """A dict as a part of checkpoints."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def state_dict(self) -> dict[str, Any]:
        return dict(self._content)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._content.clear()
        self._content.update(state)

"""The job as a training script sees it: ``init``, ``prepare``, ``loader``, ``epochs``, ``report``."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from coadapt.errors import InputError
from coadapt.model import Batch
from coadapt.torch import history, options, pace, sync
from coadapt.torch.adaptation import Adaptation
from coadapt.torch.audit import Audit
from coadapt.torch.batches import BatchRule, batch_rule
from coadapt.torch.checkpoints import Checkpoints
from coadapt.torch.data import Examples, Stream
from coadapt.torch.elastic import SAVED_AND_LEFT, Elastic, directory_for
from coadapt.torch.gradients import Gradients
from coadapt.torch.group import Group, pick_device
from coadapt.torch.loader import Loader
from coadapt.torch.measuring import Measuring
from coadapt.torch.memory import MemoryLimit
from coadapt.torch.model import ReplicaModel
from coadapt.torch.noise import NoiseAverage
from coadapt.torch.notices import Notice
from coadapt.torch.optimizer import Schedule, adam_divisors, parameters_of, teach_optimizer, teach_scaler
from coadapt.torch.place import here
from coadapt.torch.rates import RateRule, adaptive, rule_for
from coadapt.torch.resize import Joining, first_generation, resize
from coadapt.torch.sampling import Sampling
from coadapt.torch.state import State
from coadapt.torch.training import Training

log = logging.getLogger("coadapt.torch")


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
    device: str | torch.device | None = None,
) -> Job:
    """Joins the other replicas and finds the state to go on from.

    ``batch`` is a batch rule or its name (adaptive, fixed, per-gpu, adabatch, cabs, lb-bsp), ``rate`` a learning-rate rule
    (auto, adascale, sqrt, linear, legw, none), ``sync`` a synchronisation architecture. Without ``checkpoints`` the directory
    is the scheduler's, or none. ``same_schedule`` names the history.jsonl of a run to repeat.
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
        device: str | torch.device | None,
    ) -> None:
        began = time.perf_counter()
        self._sync_name, self._ddp, self._seed, self._rate = (
            sync.check(sync_name),
            options.check_ddp(ddp),
            seed,
            rate,
        )
        # replicas that are not in step have no gradient in common whose noise could be told
        sampling.off = not sync.in_step(sync_name)
        place = here()
        self.device = torch.device(device) if device is not None else pick_device(place)
        self._joining = Joining.asked()
        generation = self._joining.generation if self._joining else first_generation()
        self._group = Group(place, self.device, generation=generation)
        self._training = Training(self._group, sampling=sampling, between=self._between)
        self._training.gpu_type = os.environ.get(
            "COADAPT_GPU_TYPE", self.device.type if self.device.type != "cuda" else "gpu"
        )
        if same_schedule:
            self._training.history = history.History(history.load(Path(same_schedule)))
        if paced := os.environ.get("COADAPT_PACE"):
            self._training.pace = pace.load(paced, place)
        self._memory = MemoryLimit()
        self._adaptation = Adaptation(self._training, batch, self._memory)
        self._state = State(self._adaptation, seed)
        kept = None
        if checkpoints is not None:
            kept = Checkpoints(checkpoints, attempt=place.attempt, keep=keep, budget_bytes=disk_budget_bytes)
        self._elastic = Elastic(self._training, self._state, kept, every_s=checkpoint_every_s)
        self._elastic.listen()
        self._measuring = Measuring(self._training, self._adaptation, self._elastic, self._state)
        self._audit = Audit.asked(place)
        self._model: ReplicaModel | None = None
        self._optimizer: Optimizer | None = None
        self._loader: Loader | None = None
        self._hooks: list[Callable[[Job], None]] = []
        self._changed_cost: tuple[str, float] | None = None
        if self._joining is None:
            self._group.open()
            self._find_state(kept)
        atexit.register(self._close)
        self._elastic.overheads_s["setup"] = time.perf_counter() - began

    # -- what a script asks ------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This replica's number; 0 is the one that prints."""
        return self._group.place.rank

    @property
    def replicas(self) -> int:
        """How many there are at present."""
        return self._group.place.replicas

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
        if self._model is not None:
            raise InputError("job.prepare() was called twice; one model and one optimizer make a job")
        options.check_model(model, optimizer)
        preconditioned = adaptive(optimizer)
        gradients = Gradients(
            parameters_of(optimizer),
            precondition=(lambda: adam_divisors(optimizer)) if preconditioned else (lambda: None),
            loss_scale=self._loss_scale,
        )
        gradients.buffers = model.buffers
        self._training.gradients = gradients
        self._training.rule = rule_for(self._rate, optimizer)
        self._model = ReplicaModel(model.to(self.device), gradients, self._memory)
        self._optimizer, self._scaler = optimizer, None
        # restored before their methods are replaced: some optimizers rebuild themselves on loading
        self._state.add("model", model)
        self._state.add("optimizer", optimizer)
        for number, other in enumerate(others):
            self._prepare_other(other, number)
        teach_optimizer(optimizer, self._training)
        return (self._model, optimizer, *others)

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
        spec = os.environ.get("COADAPT_BATCH")
        limits = options.batch_limits(batch_size, max_batch_size, per_gpu, None)
        if spec:
            limits = self._spec_limits(spec, limits)
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
        training.noise.smoothing = NoiseAverage(len(self._loader)).smoothing
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
        names, pairs = sorted(metrics), []
        for name in names:
            value = metrics[name]
            total, count = value if isinstance(value, tuple) else (value, 1)
            pairs += [_number(name, total), _number(name, count)]
        sums = self._group.sum(pairs)
        found = {n: sums[2 * i] / sums[2 * i + 1] if sums[2 * i + 1] else 0.0 for i, n in enumerate(names)}
        self._state.metrics.update(found)
        return found

    def on_epoch(self, function: Callable[[Job], None]) -> Callable[[Job], None]:
        """Has ``function(job)`` called at the start of every epoch; it may set ``job.rule`` (a decorator)."""
        self._hooks.append(function)
        return function

    @property
    def rule(self) -> BatchRule:
        """The batch rule; may be replaced at any time, on all replicas alike."""
        return self._adaptation.rule

    @rule.setter
    def rule(self, rule: str | BatchRule) -> None:
        self._adaptation.rule = batch_rule(rule)

    def save_with(self, name: str, part: Any) -> None:
        """Another object (with state_dict and load_state_dict) to be saved and restored: an average of weights, ..."""
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise InputError(f"{name}: a {type(part).__name__} has no state_dict and load_state_dict")
        self._state.add(f"own:{name}", part)

    # -- the loop ------------------------------------------------------------------------------------------

    def _bodies(self, count: int, *, whole_passes: bool) -> Iterator[int]:
        if self._model is None or self._loader is None:
            raise InputError("call job.prepare() and job.loader() before the loop over epochs")
        training, ledger = self._training, self._training.ledger
        training.whole_passes = whole_passes
        self._begin()
        while ledger.epoch < count:
            for hook in self._hooks:
                hook(self)
            self._adapt()
            yield ledger.epoch
            ledger.epoch += 1
            self._elastic.save(wait=False)
        self._finish()

    def _begin(self) -> None:
        """All is there: the group synchronises the model from here on."""
        if self._joining is not None:
            self._state.restore(self._joining.join(self))
            self._joining = None
        self._synchronise()
        self._training.started = True

    def _synchronise(self) -> None:
        """Builds what a new generation needs around the same model."""
        assert self._model is not None
        gradients = self._training.gradients
        assert gradients is not None
        self._training.group = self._group
        assert self._optimizer is not None
        gradients.sync = sync.make(self._sync_name, self._ddp, self.replicas)
        self._model.synced_by(gradients.sync.wrap(self._model.module))
        gradients.sync.open(self._group, self._optimizer)
        if self._training.pace is not None:
            self._training.pace.moved(self._group.place)
        self._elastic.start(self._group)

    def _adapt(self) -> bool:
        """Decides on the batch size anew, by all that is known."""
        assert self._optimizer is not None
        self._measuring.flush()
        return self._adaptation.choose(self._state.metrics, float(self._optimizer.param_groups[0]["lr"]))

    def _between(self) -> bool:
        """Called after every step; True if what follows must be planned anew."""
        if self._audit is not None:
            self._audit.step(self._training)
        changed = False
        if self._memory.untold is not None and self._elastic.notices is not None:
            self._elastic.notices.ask(Notice(kind="limit", atomic=self._memory.untold))
            self._memory.untold = None
        while (notice := self._elastic.due()) is not None:
            changed = self._act(notice) or changed
        if self._training.history.replays:
            changed = self._adaptation.replay() or changed
        self._measuring.step()
        return changed

    def _act(self, notice: Notice) -> bool:
        if notice.kind == "stop":
            self._measuring.flush(last=True)
            self._elastic.stop()
        elif notice.kind == "checkpoint":
            self._elastic.save(wait=False)
        elif notice.kind == "limit":
            self._memory.atomic = min(notice.atomic, self._memory.atomic or notice.atomic)
            return self._adapt()
        elif notice.kind == "resize":
            resize(self, notice)
            return True
        return False

    def _finish(self) -> None:
        self._state.finished = True
        self._training.started = False
        self._measuring.flush(last=True)
        self._elastic.save(wait=True)
        self._elastic.deafen()
        assert self._training.gradients is not None
        if self._training.gradients.sync is not None:
            self._training.gradients.sync.close()

    def _close(self) -> None:
        if self._elastic.checkpoints is not None:
            self._elastic.checkpoints.wait()
        self._elastic.deafen()
        if self._training.gradients is not None and self._training.gradients.sync is not None:
            self._training.gradients.sync.close()
        self._group.close()
        if self._group.abandoned:
            # what is left to do is to take C++ objects apart, which helps nobody and may abort
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(SAVED_AND_LEFT)

    # -- the beginning -------------------------------------------------------------------------------------

    def _find_state(self, kept: Checkpoints | None) -> None:
        state = None
        if kept is not None and self._group.place.first:
            kept.claim()
            state = kept.latest()
        state = self._group.from_first(state)
        if state is not None:
            self._state.restore(state)
            if self._group.place.first:
                log.info("going on after step %d", self._training.ledger.step)

    def _prepare_other(self, other: Any, number: int) -> None:
        if hasattr(other, "unscale_") and hasattr(other, "update"):
            self._scaler, self._training.scaled_loss = other, True
            teach_scaler(other, self._training)
            self._state.add("scaler", other)
        elif hasattr(other, "step") and hasattr(other, "state_dict"):
            self._state.add(f"schedule{number}", Schedule(other, self._training))
        else:
            raise InputError(
                f"job.prepare() knows no {type(other).__name__}: it takes a model, an optimizer, schedules, a GradScaler"
            )

    def _loss_scale(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0

    def _spec_limits(self, text: str, own: Batch) -> Batch:
        try:
            spec = msgspec.json.decode(text, type=Batch)
        except msgspec.DecodeError as error:
            raise InputError(f"COADAPT_BATCH is no batch of a job's spec: {error}") from error
        if spec != own and self._group.place.first:
            log.warning("the job's spec says %s, the script %s: the spec holds", _said(spec), _said(own))
        return spec


def _said(limits: Batch) -> str:
    return f"batch {limits.initial}..{limits.max}, {limits.per_gpu_min}..{limits.per_gpu_max} per GPU"


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach()) if isinstance(value, Tensor) else float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"job.report({name}=...): {value!r:.60} is not a number") from error

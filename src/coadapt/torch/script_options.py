"""Validation of the arguments of ``init``, ``prepare`` and ``loader``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from coadapt.errors import InputError
from coadapt.model import Batch
from coadapt.torch.sync._base import parameters_of

log = logging.getLogger("coadapt.torch")
#: DataLoader's options that a script may set; the others concern how batches are made.
_LOADER_OPTIONS = frozenset(
    [
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "prefetch_factor",
        "pin_memory_device",
        "in_order",
        "drop_last",
        "persistent_workers",
        "generator",
    ]
)


def batch_limits(
    batch_size: int,
    max_batch_size: int | None,
    per_gpu: tuple[int, int] | None,
) -> Batch:
    """The batch limits from the arguments of ``job.loader()``."""
    largest = batch_size if max_batch_size is None else max_batch_size
    low, high = (1, largest) if per_gpu is None else per_gpu
    for name, value in (("batch_size", batch_size), ("max_batch_size", largest), ("per_gpu", low)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name}={value!r}: it must be a whole number of at least 1")
    if largest < batch_size:
        raise InputError(f"max_batch_size={largest} excludes the batch size to start with, {batch_size}")
    if not low <= high:
        raise InputError(f"per_gpu=({low}, {high}): the smaller number comes first")
    if low > batch_size:
        raise InputError(
            f"per_gpu=({low}, {high}) excludes the batch size to start with: one replica would have {batch_size} examples"
        )
    return Batch(initial=batch_size, max=largest, per_gpu_min=low, per_gpu_max=high, samples_alone=True)


def spec_limits(text: str, own: Batch, *, warn: bool) -> Batch:
    """The batch limits of the job's spec (``text``, JSON), which override the script's (``own``); ``warn`` if they differ."""
    try:
        # how steps are sampled is the agent's property, whatever an older controller wrote
        spec = msgspec.structs.replace(msgspec.json.decode(text, type=Batch), samples_alone=True)
    except msgspec.DecodeError as error:
        raise InputError(f"COADAPT_BATCH is not the batch section of a job's spec: {error}") from error
    if spec != own and warn:
        log.warning("the job's spec sets %s, the script %s: the spec is used", _text(spec), _text(own))
    return spec


def _text(limits: Batch) -> str:
    size = f"{limits.initial}..{limits.max}" if limits.mode == "adaptive" else f"{limits.initial}, fixed"
    return f"batch {size}, {limits.per_gpu_min}..{limits.per_gpu_max} per GPU"


def check_dataset(dataset: Any, sampler: Any, shuffle: bool | None, options: dict[str, Any]) -> None:
    """Raise an error for arguments of ``job.loader()`` that cannot work.

    ``dataset``, ``sampler`` and ``shuffle`` are its own, ``options`` those for DataLoader.
    """
    if isinstance(dataset, DataLoader):
        raise InputError(
            "job.loader() takes the dataset, not a DataLoader around it: job.loader(loader.dataset, batch_size=...)"
        )
    if unknown := sorted(options.keys() - _LOADER_OPTIONS):
        hint = " (job.loader() makes the batches)" if unknown[0] == "batch_sampler" else ""
        raise InputError(
            f"job.loader() has no option {unknown[0]!r}{hint}; of DataLoader's it takes {', '.join(sorted(_LOADER_OPTIONS))}"
        )
    stream = isinstance(dataset, IterableDataset)
    if not stream and not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InputError(f"a {type(dataset).__name__} is not a dataset: it needs __len__ and __getitem__")
    if not stream and len(dataset) == 0:
        raise InputError("the dataset is empty")
    if sampler is not None and shuffle:
        raise InputError("sampler= and shuffle=True exclude each other")
    if stream and (sampler is not None or shuffle):
        raise InputError("an IterableDataset has its own order: remove sampler= and shuffle=")
    if stream and options.get("num_workers"):
        raise InputError("an IterableDataset is read by the replica itself: num_workers must be 0")


def check_ddp(ddp: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options for DistributedDataParallel; an error for one that the agent cannot support."""
    if ddp.get("gradient_as_bucket_view"):
        raise InputError(
            "ddp={'gradient_as_bucket_view': True} is not supported: the agent replaces gradients"
        )
    return ddp


def _check_parts(model: nn.Module, replicas: int) -> None:
    for part in model.modules():
        name = type(part).__name__
        if "FSDP" in name or "FullyShardedDataParallel" in name:
            raise InputError("FSDP models are not supported: every replica must hold the whole model")
        if isinstance(part, nn.SyncBatchNorm) and replicas > 1:
            # its forward pass is a collective, and replicas may make unequal numbers of passes
            raise InputError(
                f"SyncBatchNorm is not supported on {replicas} replicas (PyTorch itself has none on CPUs): use BatchNorm, "
                "whose statistics are those of one pass on one replica, or GroupNorm or LayerNorm"
            )
    if any(type(p).__name__ == "DTensor" for p in model.parameters()):
        raise InputError(
            "sharded parameters (DTensor) are not supported: every replica must hold the whole model"
        )


def check_model(model: nn.Module, optimizer: Optimizer, *, replicas: int) -> None:
    """Raise an error for a model and an optimizer that cannot be trained."""
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        raise InputError(
            "job.prepare(model, optimizer, ...): the first must be a Module, the second an Optimizer"
        )
    name = type(model).__name__
    if name in ("DistributedDataParallel", "DataParallel"):
        raise InputError(f"job.prepare() wraps the model itself: pass it without {name}")
    if isinstance(optimizer, LBFGS):
        raise InputError("LBFGS is not supported: it computes gradients several times inside a step")
    _check_parts(model, replicas)
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    if not trained:
        raise InputError("the model has no parameter that requires a gradient: there is nothing to train")
    known = parameters_of(optimizer)
    if not any(id(p) in trained for p in known):
        raise InputError(
            "the optimizer trains none of the model's parameters; was it made from another model?"
        )
    if any(id(p) not in trained for p in known):
        raise InputError(
            "the optimizer trains parameters that the model does not have: they would not be averaged"
        )


def check_others(others: Sequence[Any]) -> None:
    """Raise an error for further arguments of ``job.prepare()`` that would be taken for something else."""
    for other in others:
        if isinstance(other, Optimizer):
            raise InputError(
                "job.prepare() got a second optimizer: it takes one, with a group of parameters for each part "
                "(optimizer.add_param_group), or one job for each model; several optimizers in turn (GAN) are not supported"
            )
        if isinstance(other, Dataset):
            raise InputError(
                "job.prepare() takes a DataLoader, not a dataset: or use job.loader(dataset, batch_size=...)"
            )


def loader_options(given: DataLoader[Any]) -> tuple[Any, int, dict[str, Any]]:
    """Dataset, batch size and other arguments of ``job.loader()`` for a DataLoader of the script."""
    dataset, stream = given.dataset, isinstance(given.dataset, IterableDataset)
    own_batches = given.batch_sampler is not None and type(given.batch_sampler) is not BatchSampler
    if own_batches or given.batch_size is None:
        raise InputError(
            "the DataLoader has a batch sampler of its own: job.prepare() takes one with batch_size=, because coadapt makes the batches"
        )
    options: dict[str, Any] = {"collate_fn": given.collate_fn}
    for name in ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"):
        if getattr(given, name, None):
            options[name] = getattr(given, name)
    if given.num_workers and given.prefetch_factor is not None:
        options["prefetch_factor"] = given.prefetch_factor
    if given.drop_last:
        options["drop_last"] = True
    if stream:
        options["length"] = _length_of_stream(dataset)
        return dataset, given.batch_size, options
    sampler = given.sampler
    whole = type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(dataset)
    if whole or type(sampler) is SequentialSampler:
        options["shuffle"] = whole
    else:
        options["sampler"] = sampler
    return dataset, given.batch_size, options


def _length_of_stream(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise InputError(
            "the DataLoader's IterableDataset has no length: use job.loader(dataset, batch_size=..., length=...)"
        ) from None

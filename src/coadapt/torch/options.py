"""What a script may ask for, checked before anything is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from coadapt.errors import InputError
from coadapt.model import Batch
from coadapt.torch.optimizer import parameters_of

#: DataLoader's options that batches of our own making leave open.
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
    ]
)


def batch_limits(
    batch_size: int,
    max_batch_size: int | None,
    per_gpu: tuple[int, int] | None,
    spec: Batch | None,
) -> Batch:
    """The limits; where spec and script disagree, the spec wins."""
    if spec is not None:
        return spec
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
    return Batch(initial=batch_size, max=largest, per_gpu_min=low, per_gpu_max=high)


def check_dataset(dataset: Any, sampler: Any, shuffle: bool | None, options: dict[str, Any]) -> None:
    """Says what is wrong with what a loader was asked to read."""
    if isinstance(dataset, DataLoader):
        raise InputError(
            "job.loader() takes the dataset, not a DataLoader around it: job.loader(loader.dataset, batch_size=...)"
        )
    if unknown := sorted(options.keys() - _LOADER_OPTIONS):
        hint = " (batches are made here)" if unknown[0] in ("batch_sampler", "drop_last") else ""
        raise InputError(
            f"job.loader() has no option {unknown[0]!r}{hint}; of DataLoader's it takes {', '.join(sorted(_LOADER_OPTIONS))}"
        )
    stream = isinstance(dataset, IterableDataset)
    if not stream and not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InputError(f"a {type(dataset).__name__} is no dataset: it needs __len__ and __getitem__")
    if not stream and len(dataset) == 0:
        raise InputError("the dataset is empty")
    if sampler is not None and shuffle:
        raise InputError("sampler= and shuffle=True exclude each other")
    if stream and (sampler is not None or shuffle):
        raise InputError("an IterableDataset has its own order: neither sampler= nor shuffle= apply")
    if stream and options.get("num_workers"):
        raise InputError("an IterableDataset is read by the replica itself: num_workers must be 0")


def check_ddp(ddp: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of DistributedDataParallel, if the agent can do with them."""
    if ddp.get("gradient_as_bucket_view"):
        raise InputError("ddp={'gradient_as_bucket_view': True} is not supported: gradients must be movable")
    return ddp


def check_model(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuses what cannot be trained, with the reason."""
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        raise InputError(
            "job.prepare(model, optimizer, ...): the first must be a Module, the second an Optimizer"
        )
    name = type(model).__name__
    if name in ("DistributedDataParallel", "DataParallel"):
        raise InputError(f"job.prepare() wraps the model itself: pass it without {name}")
    if "FSDP" in name or "FullyShardedDataParallel" in name or hasattr(model, "_get_fsdp_state"):
        raise InputError("FSDP models are not supported: every replica must hold the whole model")
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

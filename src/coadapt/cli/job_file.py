"""A job as its author writes it, in YAML or as a mapping: becomes the one ``JobSpec``, or one clear line.

name: cifar10
run: python train.py
resources: {accelerators: "t4:1..8"}
batch: {initial: 128, max: 4096, per_gpu: 32..1024}
epochs: 30
data_size: 50000
deadline: 6h
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from coadapt.cli.job_values import Values
from coadapt.cli.plan_files import BATCH_KEYS, RESOURCE_KEYS, SPEC_KEYS
from coadapt.cli.plan_words import parse_deadline, parse_gpus, parse_range
from coadapt.errors import InputError
from coadapt.model import Batch, JobSpec, Resources, Role
from coadapt.predict.remaining import parse_target
from coadapt.units import parse_bytes, parse_duration

#: What may stand below a key.
_BELOW = {"resources": RESOURCE_KEYS, "batch": BATCH_KEYS}
#: What a shell is needed for.
_SHELL = set("|&;<>()$`\\\"'*?[#~=%\n{}")


def job_spec(
    given: Mapping[str, Any], *, where: str = "the specification", now: datetime | None = None
) -> JobSpec:
    """The job in ``given``; ``where`` it stands, for messages. Its working directory is not looked at."""
    values = Values(given, where, SPEC_KEYS, _BELOW)
    if given.get("roles") is not None:
        raise InputError(
            f"{where}: 'roles' cannot be submitted; GPUs are resources.accelerators, and parameter servers run within "
            'the workers (coadapt.torch: sync="servers:2")'
        )
    worker, types = _workers(values)
    command = command_of(given.get("run"), where)
    batch = _batch(values, worker)
    epochs = values.number("epochs", above=0)
    passes = values.number("passes", above=0)
    if epochs is not None and passes is not None:
        raise InputError(f"{where}: 'epochs' are of work, 'passes' over the data; give one of them")
    target = values.text("target")
    if target is not None:
        parse_target(target)
    deadline = values.text("deadline")
    time_limit = values.text("time_limit")
    elastic = worker.min < worker.max or (batch is not None and batch.mode == "adaptive")
    preemptible = values.flag("preemptible")
    return JobSpec(
        name=values.text("name") or _name_from(command),
        team=values.text("team") or "",
        roles=(worker,),
        gpu_types=types,
        requested=worker.min,
        requested_batch=batch.initial if batch else None,
        batch=batch,
        epochs=epochs if epochs is not None else passes,
        target=target,
        data_size=values.whole("data_size", least=1),
        profile=values.text("profile") or "",
        priority=values.whole("priority", least=-20, most=20) or 0,
        deadline_s=None if deadline is None else parse_deadline(deadline, now or datetime.now()),
        time_limit_s=None if time_limit is None else parse_duration(time_limit),
        after=tuple(values.texts("after")),
        # a script that says nothing of saving its state is not stopped in the middle
        preemptible=elastic if preemptible is None else preemptible,
        retries=values.whole("retries", least=0, most=1000) or 0,
        mixed=values.flag("mixed") or False,
        command=command,
        setup=command_of(given.get("setup"), where, name="setup"),
        envs=values.strings("envs"),
        metrics=values.patterns("metrics"),
    )


def command_of(run: Any, where: str, name: str = "run") -> tuple[str, ...]:
    """A command's words; one that needs a shell gets one."""
    if run is None or run == "":
        return ()
    if isinstance(run, list | tuple):
        if not all(isinstance(word, str | int | float) for word in run):
            raise InputError(f"{where}: {name!r} must be a command, or a list of its words")
        return tuple(str(word) for word in run)
    if not isinstance(run, str):
        raise InputError(f"{where}: {name!r} must be a command, for example python train.py")
    if "\0" in run:
        raise InputError(f"{where}: {name!r} holds a NUL byte")
    if not _SHELL & set(run):
        return tuple(run.split())
    try:
        shlex.split(run)
    except ValueError as error:
        raise InputError(f"{where}: {name!r} is not a command: {error}") from None
    return ("/bin/sh", "-c", run)


def _workers(values: Values) -> tuple[Role, tuple[str, ...]]:
    resources = values.below("resources")
    text = resources.text("accelerators")
    ranges = parse_gpus(text) if text is not None else parse_gpus("gpu:1")
    sizes = {(each.low, each.high) for each in ranges}
    if len(sizes) > 1:
        raise InputError(
            f"{values.where}: one range of GPUs for all types, please: {text!r} names several; "
            "write for example a100:1..8,t4:1..8"
        )
    ((low, high),) = sizes
    if text is not None and not re.search(r"(?:^|[:,])\s*\d", text):
        low = high = 1  # a type alone: one of it
    # accelerators are of each node, where nodes are counted
    nodes = values.whole("num_nodes", least=1) or 1
    low, high = low * nodes, high * nodes
    each = values.whole("gpus_per_replica", least=1) or 1
    if (low % each and low != high) or high % each:
        raise InputError(
            f"{values.where}: {text or 1} GPUs cannot be shared out in replicas of {each} (gpus_per_replica)"
        )
    memory = resources.text("memory")
    demand = Resources(
        gpus=each,
        cpus=resources.number("cpus", least=0) or 0.0,
        memory_bytes=0.0 if memory is None else float(parse_bytes(memory)),
    )
    types = tuple(each.gpu_type for each in ranges if each.gpu_type != "gpu")
    return Role(min=max(low // each, 1), max=high // each, demand=demand), types


def _batch(values: Values, worker: Role) -> Batch | None:
    if values.given.get("batch") is None:
        return None
    batch = values.below("batch")
    initial = batch.whole("initial", least=1)
    if initial is None:
        raise InputError(f"{values.where}: 'batch' needs 'initial', the batch size the job was made for")
    most = batch.whole("max", least=1) or initial
    mode = batch.text("mode") or ("adaptive" if most > initial else "fixed")
    if mode not in ("adaptive", "fixed"):
        raise InputError(f"{values.where}: batch mode {mode!r} is not known; write adaptive or fixed")
    if most < initial:
        raise InputError(f"{values.where}: batch.max {most} is less than batch.initial {initial}")
    per_gpu = batch.text("per_gpu")
    low, high = parse_range("batch.per_gpu", per_gpu) if per_gpu else (1, max(initial // worker.min, 1))
    if low * worker.min > most:
        raise InputError(
            f"{values.where}: {low} examples on each of {worker.min} GPUs are more than batch.max {most}"
        )
    return Batch(
        initial=initial,
        max=most,
        per_gpu_min=low,
        per_gpu_max=high,
        mode="adaptive" if mode == "adaptive" else "fixed",
        samples_alone=True,
    )


def _name_from(command: tuple[str, ...]) -> str:
    """Of the script, where none is given."""
    words = shlex.split(command[2]) if command[:2] == ("/bin/sh", "-c") else command
    for word in words:
        if word.endswith((".py", ".sh")):
            return word.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return words[0].rsplit("/", 1)[-1] if words else "job"

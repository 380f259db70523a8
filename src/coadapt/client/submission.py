"""Reads a job to submit: combines job file, command and options into one specification."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from coadapt.errors import InputError
from coadapt.model import JobSpec
from coadapt.spec.deadline import parse_deadline
from coadapt.spec.gpus import parse_gpus
from coadapt.spec.job_file import fill_placeholders, parse_job
from coadapt.spec.target import parse_target
from coadapt.spec.yaml_file import read_mapping

#: Options that are keys of a job file under the same name.
_PLAIN = (
    "name", "team", "epochs", "data_size", "deadline", "target", "priority", "retries", "time_limit", "preemptible",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job and the directory of its code, which is packed when the job is submitted."""

    spec: JobSpec
    directory: Path


def read_submission(words: Sequence[str], *, workdir: str | None = None, **options: Any) -> Submission:
    """Returns the job of ``[SPEC.yaml] [COMMAND...]``, with options.

    Args:
        words: A job file, a command, or a job file and the command to run instead of its own.
        workdir: Directory of the code; None: as the file says, its own directory, or the working directory.
        options: ``name``, ``epochs``, ``data_size``, ``deadline``, ``target``, ``priority``, ``retries``,
            ``time_limit``, ``preemptible`` and ``after`` as in a job file; ``gpus`` ("t4:1..8"), ``batch``,
            ``max_batch``, ``per_gpu_batch``, and ``envs``, texts NAME=VALUE. An option that is None is not given.
    """
    files = [each for each in words[:1] if each.endswith((".yaml", ".yml", ".json"))]
    words = words[len(files) :]
    if not files and not words:
        raise InputError(
            "nothing to run; give a job file, or a command after '--': coadapt submit -- python train.py"
        )
    if words and words[0].endswith(".py") and not os.access(words[0], os.X_OK):
        raise InputError(f"{words[0]} is not executable: write coadapt submit -- python {' '.join(words)}")
    mapping = read_mapping(files[0], "job file") if files else {}
    where = files[0] if files else "the command line"
    if words:
        mapping = {**mapping, "run": list(words)}
    mapping = _joined(mapping, options)
    spec = parse_job(fill_placeholders(mapping, where), where=where).spec
    if not spec.command:
        raise InputError(f"{where} has no 'run'; write for example run: python train.py")
    directory = Path(workdir or mapping.get("workdir") or (Path(files[0]).parent if files else "."))
    return Submission(spec=spec, directory=directory)


def _joined(mapping: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Override ``mapping`` by the options; an invalid option is refused with the same message as by ``plan``."""
    if options.get("target") is not None:
        parse_target(options["target"])
    if options.get("deadline") is not None:
        parse_deadline(options["deadline"], datetime.now())
    if options.get("gpus") is not None:
        parse_gpus(options["gpus"])
    joined = dict(mapping)
    for name in _PLAIN:
        if options.get(name) is not None:
            joined[name] = options[name]
    if options.get("epochs") is not None:
        joined.pop("passes", None)
    if options.get("after"):
        joined["after"] = list(options["after"])
    if options.get("gpus") is not None:
        joined["resources"] = {**(joined.get("resources") or {}), "accelerators": options["gpus"]}
    batch = {
        key: options[name]
        for key, name in (("initial", "batch"), ("max", "max_batch"), ("per_gpu", "per_gpu_batch"))
        if options.get(name) is not None
    }
    if "initial" in batch and "max" in batch and batch["max"] < batch["initial"]:
        raise InputError(f"--max-batch {batch['max']} is less than --batch {batch['initial']}")
    if batch:
        joined["batch"] = {**(joined.get("batch") or {}), **batch}
    envs = dict(joined.get("envs") or {})
    for each in options.get("envs") or ():
        name, sign, value = each.partition("=")
        if not sign or not name:
            raise InputError(f"--env {name!r} has no {'value' if name else 'name'}; write NAME=VALUE")
        envs[name] = value
    return {**joined, "envs": envs} if envs else joined

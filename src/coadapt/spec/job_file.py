r"""The job file: parses YAML, JSON or a mapping into a ``JobSpec``; an error is one line with the place.

    name: cifar10
    run: python train.py
    resources: {accelerators: "t4:1..8"}
    batch: {initial: 128, max: 4096, per_gpu: 32..1024}
    epochs: 30
    data_size: 50000
    deadline: 6h

``KEYS`` is the table of all keys. It drives parsing, suggestions for unknown keys, the JSON Schema and the reference page
(``job_reference``). ``plan`` and ``submit`` use the same parser, so that both accept a file or both refuse it with the same
message; keys that only one of them uses are checked by both.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import date, datetime
from typing import Any, Literal

import msgspec

from coadapt.errors import InputError, suggestion
from coadapt.model import Batch, JobSpec, Resources, Role
from coadapt.spec.deadline import parse_deadline
from coadapt.spec.gpus import ANY_GPU, parse_gpus, parse_range
from coadapt.spec.job_rules import Surroundings, check_spec
from coadapt.spec.prices import parse_money
from coadapt.spec.target import parse_target
from coadapt.spec.yaml_file import read_mapping
from coadapt.units import parse_bytes, parse_duration

Kind = Literal[
    "text", "command", "names", "whole", "number", "flag", "choice", "variables", "mapping",
    "target", "deadline", "duration", "size", "gpus", "range", "money",
]  # fmt: skip
LR_RULES = ("linear", "sqrt", "adascale", "none")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a job file. ``name`` includes the keys above it, as in "batch.initial"."""

    name: str
    kind: Kind
    #: Value as in a file.
    example: Any
    meaning: str
    _: KW_ONLY
    #: Description of the default; empty: none.
    default: str = ""
    #: Bounds of a number; all are inclusive except ``above``.
    least: int | None = None
    most: int | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    used_by: Literal["plan and submit", "plan", "submit"] = "plan and submit"


KEYS: tuple[Key, ...] = (
    Key(
        "name",
        "text",
        "cifar10",
        "Name of the job: 1 to 63 letters, digits, '_', '.' or '-'. Past jobs are matched by name.",
        default="the script's name",
    ),
    Key(
        "run",
        "command",
        "python train.py --bs {batch_size} --epochs {epochs}",
        "Command to run, or a list of its words. {batch_size}, {epochs}, {lr} and {seed} are replaced. 'submit' requires it, here or after '--'.",
    ),
    Key(
        "setup",
        "command",
        "pip install -r requirements.txt",
        "Command that runs once on each node before the first replica of an attempt.",
        used_by="submit",
    ),
    Key(
        "workdir",
        "text",
        "training",
        "Directory of the code, which is packed at submission.",
        default="the directory of the file",
        used_by="submit",
    ),
    Key(
        "envs",
        "variables",
        {"SEED": 1},
        "Environment variables of the job. Of the names that begin with COADAPT_ it may set two, to 0 or 1: COADAPT_IN_PLACE "
        "(resize in place or by restart; default: in place if the script names coadapt) and COADAPT_SKEWED (whether the placer "
        "'skew' keeps the job on few nodes).",
        used_by="submit",
    ),
    Key("resources", "mapping", {"accelerators": "t4:1..8"}, "Resources of the job."),
    Key(
        "resources.accelerators",
        "gpus",
        "a100:1..8",
        "GPU type and number: t4:4, t4:1..8 or 1..8; a type alone means one GPU. Several types are separated by commas and have the same range.",
        default="GPUs for one replica, of any type; 'plan' considers 1..8",
    ),
    Key("resources.cpus", "number", 2, "CPU cores of one replica.", default="0", least=0, used_by="submit"),
    Key("resources.memory", "size", "16GiB", "Main memory of one replica.", default="0", used_by="submit"),
    Key(
        "num_nodes",
        "whole",
        2,
        "Number of nodes; accelerators are then per node: t4:4 on 2 nodes are 8 GPUs.",
        default="1",
        least=1,
    ),
    Key("gpus_per_replica", "whole", 2, "GPUs per replica (model parallelism).", default="1", least=1),
    Key(
        "mixed",
        "flag",
        True,
        "Whether the job may run on several GPU types at the same time.",
        default="false",
        used_by="submit",
    ),
    Key("batch", "mapping", {"initial": 128, "max": 4096}, "Limits of the batch size, in examples."),
    Key("batch.initial", "whole", 128, "Global batch size that the script is tuned for.", least=1),
    Key("batch.max", "whole", 4096, "Largest global batch size.", default="batch.initial", least=1),
    Key(
        "batch.per_gpu",
        "range",
        "32..1024",
        "Range of batch sizes per GPU.",
        default="1 to batch.initial on the minimum number of GPUs",
    ),
    Key(
        "batch.mode",
        "choice",
        "fixed",
        "Whether the batch size changes while the job runs.",
        default="adaptive if batch.max is larger than batch.initial",
        choices=("adaptive", "fixed"),
        used_by="submit",
    ),
    Key(
        "epochs",
        "number",
        30,
        "Amount of training: the work of this many epochs at the initial batch size.",
        above=0,
    ),
    Key(
        "passes",
        "number",
        30,
        "Amount of training in passes over the data; give epochs or passes, not both.",
        above=0,
    ),
    Key(
        "target",
        "target",
        "val_acc>=0.93",
        "Metric to reach: name, comparison (>=, >, =>, <=, < or =<), and a number or a percentage.",
    ),
    Key(
        "metrics",
        "variables",
        {"val_acc": r"accuracy: ([\d.]+)"},
        "Metrics to read from standard output: name and regular expression with one group.",
    ),
    Key("data_size", "whole", 50000, "Number of examples in one epoch.", least=1),
    Key(
        "deadline",
        "deadline",
        "tomorrow 9:00",
        "Deadline: 6h, 9:00, 'tomorrow 9:00', 'friday 18:00', 2026-11-17, '2026-11-17 09:00'; a number is seconds.",
    ),
    Key(
        "time_limit",
        "duration",
        "12h",
        "Maximum training time: 90s, 15m, 1h30m, 2d; a number is seconds. It is enforced.",
        used_by="submit",
    ),
    Key(
        "budget",
        "money",
        "$40",
        "Maximum cost, in the currency of the prices; without prices in GPU-hours.",
        used_by="plan",
    ),
    Key("lr", "number", 0.1, "Learning rate at the smallest batch size, for {lr}.", above=0),
    Key(
        "lr_rule",
        "choice",
        "sqrt",
        "How the learning rate grows with the batch size.",
        default="linear",
        choices=LR_RULES,
        used_by="plan",
    ),
    Key(
        "priority",
        "whole",
        5,
        "Among the jobs of a user, those with a higher priority go first.",
        default="0",
        least=-20,
        most=20,
        used_by="submit",
    ),
    Key(
        "after",
        "names",
        ["prepare-1"],
        "Jobs that must succeed before this one starts: a name or a list.",
        used_by="submit",
    ),
    Key(
        "preemptible",
        "flag",
        True,
        "Whether the job may be stopped and moved.",
        default="true if GPUs or batch size may change",
        used_by="submit",
    ),
    Key(
        "retries",
        "whole",
        2,
        "Number of retries after a failure.",
        default="0",
        least=0,
        most=100,
        used_by="submit",
    ),
    Key(
        "user",
        "text",
        "ada",
        "Owner, for matching past jobs. A submitted job always belongs to the user who submits it.",
        default="the submitting user",
        used_by="plan",
    ),
    Key("team", "text", "vision", "Team whose quota the job counts for.", used_by="submit"),
    Key("profile", "text", "cifar10", "Name of the profile of the job.", used_by="submit"),
)
_BY_NAME = {key.name: key for key in KEYS}
#: Keys that are refused with a specific message.
_REFUSED = {
    "roles": "'roles' is not supported; use resources.accelerators for GPUs. Parameter servers run within "
    'the workers (coadapt.torch: sync="servers:2")'
}
#: Characters that require a shell.
_SHELL = set("|&;<>()$`\\\"'*?[#~=%\n{}")
#: Limit of all numbers in a job file; excludes infinity and NaN.
_MOST = 1e300
_PLACEHOLDERS = re.compile(r"\{(batch_size|epochs|workers|lr|seed)\}")
#: How a user gives the value of a placeholder.
_GIVEN_BY = {
    "batch_size": "give batch.initial in the job file, or --batch",
    "epochs": "give epochs in the job file, or --epochs",
    "lr": "give lr in the job file",
    "workers": "only 'coadapt plan' replaces it",
}


def names_below(name: str) -> list[str]:
    """Keys that are allowed below ``name``; if it is empty, those of the whole file."""
    prefix = f"{name}." if name else ""
    below = [key.name.removeprefix(prefix) for key in KEYS if key.name.startswith(prefix)]
    return [each for each in below if "." not in each]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """A job file that was read and is valid."""

    #: Keys and values as written; numbers as numbers.
    given: dict[str, Any]
    #: The job as it would be submitted; without a command where the file has none.
    spec: JobSpec


def read_job(path: str, now: datetime | None = None) -> JobFile:
    """Read the job in a file; deadlines count from ``now``."""
    return parse_job(read_mapping(path, "job file"), where=path, now=now)


def job_spec(
    given: Mapping[str, Any], *, where: str = "the job file", now: datetime | None = None
) -> JobSpec:
    """The specification of the job in ``given``, as it would be submitted."""
    return parse_job(given, where=where, now=now).spec


def parse_job(given: Mapping[str, Any], *, where: str, now: datetime | None = None) -> JobFile:
    """Parse the job in ``given``; its working directory is not checked.

    ``where`` the job comes from is for messages; deadlines count from ``now``. Raises an InputError with the first mistake.
    """
    try:
        values = _values(given, now or datetime.now())
        spec = _spec(values)
        runs = spec if spec.command else msgspec.structs.replace(spec, command=("plan",))
        # the existence of the jobs in 'after' is checked at submission
        check_spec(runs, Surroundings(jobs=spec.after))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return JobFile(given=_plain(given, values), spec=spec)


def fill_placeholders(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Replace the placeholders in the command of ``given``, for ``submit``; ``where`` the job comes from is for messages."""
    run = given.get("run")
    if not isinstance(run, str) or not _PLACEHOLDERS.search(run):
        return dict(given)
    batch = given.get("batch") or {}
    known = {
        "batch_size": batch.get("initial") if isinstance(batch, Mapping) else None,
        "epochs": given.get("epochs") or given.get("passes"),
        "lr": given.get("lr"),
        "seed": 0,
    }

    def value(match: re.Match[str]) -> str:
        found = known.get(match[1])
        if found is None:
            raise InputError(
                f"{where}: the command contains {{{match[1]}}}, but the job has no value for it; {_GIVEN_BY[match[1]]}"
            )
        return str(found)

    return {**given, "run": _PLACEHOLDERS.sub(value, run)}


def command_of(run: Any, name: str = "run") -> tuple[str, ...]:
    """The words of a command; a command that needs a shell is run by one."""
    if run is None or run == "":
        return ()
    if isinstance(run, list | tuple):
        if not all(isinstance(word, str | int | float) for word in run):
            raise InputError(f"{name!r} must be a command, or a list of its words")
        return tuple(str(word) for word in run)
    if not isinstance(run, str):
        raise InputError(f"{name!r} must be a command, for example python train.py")
    if "\0" in run:
        raise InputError(f"{name!r} contains a NUL byte")
    if not _SHELL & set(run):
        return tuple(run.split())
    try:
        shlex.split(run)
    except ValueError as error:
        raise InputError(f"{name!r} is not a command: {error}") from None
    return ("/bin/sh", "-c", run)


def _values(given: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Every value that is given, read by the kind of its key; by the key's whole name."""
    found: dict[str, Any] = {}
    _read_level(given, "", now, found)
    return found


def _read_level(given: Mapping[str, Any], level: str, now: datetime, found: dict[str, Any]) -> None:
    prefix = f"{level}." if level else ""
    for plain, value in given.items():
        name = f"{prefix}{plain}"
        if name in _REFUSED and value is not None:
            raise InputError(_REFUSED[name])
        key = _BY_NAME.get(name)
        if key is None and name not in _REFUSED:
            raise InputError(f"unknown key {name[:60]!r}; {suggestion(plain, names_below(level))}")
        if key is None or value is None:
            continue
        if key.kind == "mapping":
            if not isinstance(value, Mapping):
                raise _wrong(key, f"a mapping with {', '.join(names_below(name))}", value)
            found[name] = value
            _read_level(value, name, now, found)
        else:
            found[name] = _read_value(key, value, now)


def _read_value(key: Key, value: Any, now: datetime) -> Any:
    if key.kind == "deadline":
        return parse_deadline(
            value
            if isinstance(value, date | int | float) and not isinstance(value, bool)
            else _text(key, value),
            now,
        )
    return _READ[key.kind](key, value)


def _spec(values: Mapping[str, Any]) -> JobSpec:
    worker, types = _workers(values)
    batch = _batch(values, worker)
    epochs, passes = values.get("epochs"), values.get("passes")
    if epochs is not None and passes is not None:
        raise InputError("'epochs' and 'passes' exclude each other")
    elastic = worker.min < worker.max or (batch is not None and batch.mode == "adaptive")
    command = values.get("run", ())
    return JobSpec(
        name=values.get("name") or _name_from(command),
        team=values.get("team", ""),
        roles=(worker,),
        gpu_types=types,
        requested=worker.min,
        requested_batch=batch.initial if batch else None,
        batch=batch,
        epochs=epochs if epochs is not None else passes,
        target=values.get("target"),
        data_size=values.get("data_size"),
        profile=values.get("profile", ""),
        priority=values.get("priority", 0),
        deadline_s=values.get("deadline"),
        time_limit_s=values.get("time_limit"),
        after=tuple(values.get("after", ())),
        # without declared elasticity the script may not save its state, so it is not stopped
        preemptible=values.get("preemptible", elastic),
        retries=values.get("retries", 0),
        mixed=values.get("mixed", False),
        command=command,
        setup=values.get("setup", ()),
        envs=values.get("envs", {}),
        metrics=values.get("metrics", {}),
    )


def _workers(values: Mapping[str, Any]) -> tuple[Role, tuple[str, ...]]:
    each = values.get("gpus_per_replica", 1)
    text = values.get("resources.accelerators", str(each))
    ranges = parse_gpus(text, nodes=values.get("num_nodes", 1))
    sizes = {(each.low, each.high) for each in ranges}
    if len(sizes) > 1:
        raise InputError(
            f"{text!r} has different ranges; give all GPU types the same range, for example a100:1..8,t4:1..8"
        )
    ((low, high),) = sizes
    if (low % each and low != high) or high % each:
        raise InputError(f"{text} GPUs cannot be divided into replicas of {each} GPUs (gpus_per_replica)")
    demand = Resources(
        gpus=each, cpus=values.get("resources.cpus", 0.0), memory_bytes=values.get("resources.memory", 0.0)
    )
    types = tuple(each.gpu_type for each in ranges if each.gpu_type != ANY_GPU)
    return Role(min=max(low // each, 1), max=high // each, demand=demand), types


def _batch(values: Mapping[str, Any], worker: Role) -> Batch | None:
    if "batch" not in values:
        return None
    initial = values.get("batch.initial")
    if initial is None:
        raise InputError("'batch' requires 'initial', the batch size that the script is tuned for")
    most = values.get("batch.max", initial)
    mode: Literal["adaptive", "fixed"] = values.get("batch.mode") or (
        "adaptive" if most > initial else "fixed"
    )
    if most < initial:
        raise InputError(f"batch.max {most} is less than batch.initial {initial}")
    low, high = values.get("batch.per_gpu", (1, max(initial // worker.min, 1)))
    if low * worker.min > most:
        raise InputError(f"{low} examples on each of {worker.min} GPUs exceed batch.max {most}")
    return Batch(initial=initial, max=most, per_gpu_min=low, per_gpu_max=high, mode=mode, samples_alone=True)


def _name_from(command: tuple[str, ...]) -> str:
    """Derive a name from the script; invalid characters become '-'."""
    words = shlex.split(command[2]) if command[:2] == ("/bin/sh", "-c") else command
    script = next((word for word in words if word.endswith((".py", ".sh"))), None)
    found = script.rsplit(".", 1)[0] if script else words[0] if words else "job"
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", found.rsplit("/", 1)[-1])[:63]
    return plain if re.match(r"[A-Za-z0-9]", plain) else "job"


def _plain(given: Mapping[str, Any], values: Mapping[str, Any], level: str = "") -> dict[str, Any]:
    """``given`` without empty values, with parsed numbers."""
    plain: dict[str, Any] = {}
    for name, value in given.items():
        whole = f"{level}{name}"
        if value is None:
            continue
        kind = _BY_NAME[whole].kind
        if kind == "mapping":
            plain[name] = _plain(value, values, f"{whole}.")
        elif kind in ("whole", "number", "flag", "variables"):
            plain[name] = values[whole]
        else:
            plain[name] = value if kind in ("command", "names") else str(value)
    return plain


def _text(key: Key, value: Any) -> str:
    """A text; a number is converted."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(key, "a text", value)
    return str(value)


def _checked_target(key: Key, value: Any) -> str:
    text = _text(key, value)
    parse_target(text)
    return text


def _checked_gpus(key: Key, value: Any) -> str:
    text = _text(key, value)
    parse_gpus(text)
    return text


def _labelled(key: Key, parse: Callable[[str], float], value: Any) -> float:
    """Parse a value; adds the name of the key to errors."""
    try:
        return float(parse(_text(key, value)))
    except InputError as error:
        raise InputError(f"{key.name}: {error}") from None


def _number(key: Key, value: Any) -> float:
    """A finite number within the key's bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, "a number", value)
    if (
        not -_MOST < value < _MOST
        or (key.least is not None and value < key.least)
        or (key.above is not None and value <= key.above)
        or (key.most is not None and value > key.most)
    ):
        bound = (
            f" of {key.least:g} or more"
            if key.least is not None
            else f" above {key.above:g}"
            if key.above is not None
            else ""
        )
        raise _wrong(key, f"a number{bound}", value)
    return float(value)


def _whole(key: Key, value: Any) -> int:
    """A whole number within the key's bounds."""
    least, most = key.least or 0, key.most if key.most is not None else 10**15
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not -_MOST < value < _MOST or value != int(value) or not least <= value <= most:
        bound = f"from {least} to {most}" if key.most is not None else f"of {least} or more"
        raise _wrong(key, f"a whole number {bound}", value)
    return int(value)


def _flag(key: Key, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(key, "true or false", value)


def _choice(key: Key, value: Any) -> str:
    text = _text(key, value)
    if text not in key.choices:
        raise InputError(f"{key.name} {text[:60]!r} is not valid; write {' or '.join(key.choices)}")
    return text


def _names(key: Key, value: Any) -> list[str]:
    """A list of texts; one alone is a list of one."""
    found = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(each, str) for each in found):
        raise _wrong(key, "a name, or a list of names", value)
    return list(found)


def _variables(key: Key, value: Any) -> dict[str, str]:
    """Names and texts."""
    if not isinstance(value, Mapping):
        raise _wrong(key, "a mapping of names to values", value)
    found = {}
    for name, each in value.items():
        if key.name == "envs" and not re.fullmatch(r"[A-Za-z_]\w*", str(name)):
            raise InputError(f"{str(name)[:60]!r} in {key.name!r} is not the name of a variable")
        if isinstance(each, bool | Mapping | list) or "\0" in str(each):
            raise InputError(f"the value of {str(name)[:60]!r} in {key.name!r} must be a text")
        found[str(name)] = "" if each is None else str(each)
    return found


def _wrong(key: Key, expected: str, value: object) -> InputError:
    shown = f"a number above {_MOST:g}" if isinstance(value, int) and value > _MOST else repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return InputError(f"{key.name!r} must be {expected}, not {shown}")


_READ: dict[Kind, Callable[[Key, Any], Any]] = {
    "text": _text,
    "command": lambda key, value: command_of(value, key.name),
    "names": _names,
    "whole": _whole,
    "number": _number,
    "flag": _flag,
    "choice": _choice,
    "variables": _variables,
    "target": _checked_target,
    "gpus": _checked_gpus,
    "duration": lambda key, value: _labelled(key, parse_duration, value),
    "size": lambda key, value: _labelled(key, parse_bytes, value),
    "range": lambda key, value: parse_range(key.name, _text(key, value)),
    "money": lambda key, value: parse_money(_text(key, value)),
}

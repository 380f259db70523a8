"""Validates job specifications; each violation is reported in one line.

A specification that passes is folded by the controller and read by every policy, so all values that they cannot handle
must be refused here.

The keeper, which serves all jobs, runs the regular expressions for metrics on a job's output. Python's ``re`` backtracks:
``(a+)+b`` takes exponential time on "aaaa...". So a repetition inside a repetition, and more than a few open ones in a row,
are refused; the others take polynomial time on the short lines that the keeper looks at.
"""

from __future__ import annotations

import re
import re._constants as constants  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from coadapt.errors import InputError, UnknownNameError, suggestion
from coadapt.model import SERVER, WORKER, Batch, JobSpec, Node, Role
from coadapt.model._base import SCHEMA_VERSION
from coadapt.model.resources import ROUNDING
from coadapt.spec.target import parse_target

#: A name of a job, user, team or node: safe as part of a path, a header and a line.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: The variables of ours that a job may set, to 0 or 1: whether it is resized in place, and whether its model is skewed.
JOB_FLAGS = ("COADAPT_IN_PLACE", "COADAPT_SKEWED")
SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_REPLICAS, _MOST_EXAMPLES, _MOST_S = 100_000, 1 << 40, 1e10
#: What an operating system passes to a process, with room to spare.
_MOST_WORDS, _MOST_TEXT = 1000, 128 << 10


class Surroundings(NamedTuple):
    """The cluster and the other jobs that a specification must fit."""

    #: All nodes ever seen, also those that are lost or drained: they may come back. Empty: none has joined yet.
    nodes: Collection[Node] = ()
    #: Jobs that this user may wait for.
    jobs: Collection[str] = ()
    #: Hashes of stored code; None: not to be checked.
    code: Collection[str] | None = None
    #: Most GPUs of users and teams, where that is limited.
    quotas: Mapping[str, int] = {}


def check_spec(spec: JobSpec, around: Surroundings) -> None:
    """Raise an InputError with the first rule that the specification breaks."""
    if spec.version > SCHEMA_VERSION:
        raise InputError(
            f"job specification of version {_figure(spec.version)} is not supported; this version reads up to {SCHEMA_VERSION}"
        )
    check_name("name", spec.name)
    if spec.team:
        check_name("team", spec.team)
    _check_command(spec)
    _check_roles(spec)
    _check_amounts(spec)
    if spec.batch is not None:
        _check_batch(spec.batch, spec)
    if spec.target is not None:
        parse_target(spec.target)
    check_metrics(spec.metrics)
    _check_after(spec.after, around.jobs)
    if spec.code and not SHA256.fullmatch(spec.code):
        raise InputError(f"code must be a SHA-256 in hexadecimal digits, not {spec.code[:80]!r}")
    if spec.code and around.code is not None and spec.code not in around.code:
        raise InputError(
            f"code {spec.code[:12]}... is not stored; upload it first with PUT /v1/code/{spec.code}"
        )
    if around.nodes:
        _check_fits(spec, around.nodes)
    _check_quotas(spec, around.quotas)


def check_name(what: str, text: str) -> None:
    """Raise an InputError unless ``text`` is a valid name; ``what`` it names, for the message."""
    if not NAME.fullmatch(text):
        raise InputError(
            f"{what} {text[:80]!r} must be 1 to 63 letters, digits, '_', '.' or '-', beginning with a letter or digit"
        )


def _check_command(spec: JobSpec) -> None:
    if not spec.command or not spec.command[0]:
        raise InputError('command is empty; write for example ["python", "train.py"]')
    for what, words in (("command", spec.command), ("setup", spec.setup)):
        if len(words) > _MOST_WORDS or sum(map(len, words)) > _MOST_TEXT:
            raise InputError(f"{what} is longer than {_MOST_WORDS} words or {_MOST_TEXT >> 10} KiB")
        _check_text(what, words)
    if len(spec.envs) > 256 or sum(map(len, spec.envs.values())) > _MOST_TEXT:
        raise InputError(f"envs has more than 256 variables or {_MOST_TEXT >> 10} KiB")
    for name, value in spec.envs.items():
        if not _ENV.fullmatch(name):
            raise InputError(f"envs: {name[:80]!r} is not a valid name of an environment variable")
        if name in JOB_FLAGS:
            if value not in ("0", "1"):
                raise InputError(f"envs: {name} must be 0 or 1")
        elif name.startswith("COADAPT_"):
            raise InputError(
                f"envs: {name[:80]!r} is set by coadapt; of the variables that begin with COADAPT_, "
                f"a job may set {' and '.join(JOB_FLAGS)} only"
            )
        if "\0" in value or not _encodable(value):
            raise InputError(
                f"envs: the value of {name} contains a character that environments do not allow"
            )  # never the value


def _check_text(what: str, words: Sequence[str]) -> None:
    if any("\0" in word or not _encodable(word) for word in words):
        raise InputError(
            f"{what} contains a character that command lines do not allow (NUL, or half of a surrogate pair)"
        )


def _encodable(text: str) -> bool:
    return text.isascii() or not any(0xD800 <= ord(letter) < 0xE000 for letter in text)


def _check_roles(spec: JobSpec) -> None:
    names = [role.name for role in spec.roles]
    if names not in ([WORKER], [WORKER, SERVER]):
        raise InputError(f"roles must be [{WORKER!r}] or [{WORKER!r}, {SERVER!r}], not {str(names)[:80]}")
    if (spec.sync == "allreduce") != (names == [WORKER]):
        raise InputError(
            f"sync {spec.sync!r} {'excludes' if spec.sync == 'allreduce' else 'requires'} a role {SERVER!r}"
        )
    for role in spec.roles:
        _check_role(role)
    worker = spec.worker
    if not worker.min <= spec.requested <= worker.max:
        raise InputError(
            f"requested is {_figure(spec.requested)}; it must be between min {worker.min} and max {worker.max}"
        )


def _check_role(role: Role) -> None:
    if not 1 <= role.min <= role.max <= _MOST_REPLICAS:
        raise InputError(
            f"role {role.name}: min {_figure(role.min)} and max {_figure(role.max)} must be 1 <= min <= max <= {_MOST_REPLICAS:,}"
        )
    demand, least = role.demand, 1 if role.name == WORKER else 0
    if not least <= demand.gpus <= 1024:
        raise InputError(
            f"role {role.name}: {_figure(demand.gpus)} GPUs per replica; it must be {least} to 1024"
        )
    if len(demand.extras) > 16:
        raise InputError(f"role {role.name}: more than 16 extra resources")
    amounts = {"cpus": demand.cpus, "memory_bytes": demand.memory_bytes, **demand.extras}
    for name, amount in amounts.items():
        if not 0 <= amount <= 1e18:
            raise InputError(f"role {role.name}: {name[:80]} is {_figure(amount)}; it must be 0 to 1e18")


def _check_amounts(spec: JobSpec) -> None:
    bounds: Mapping[str, tuple[float | None, float, float]] = {
        "epochs": (spec.epochs, 0, 1e9),
        "data_size": (spec.data_size, 0, _MOST_EXAMPLES),
        "duration_s": (spec.duration_s, 0, _MOST_S),
        "deadline_s": (spec.deadline_s, 0, _MOST_S),
        "time_limit_s": (spec.time_limit_s, 0, _MOST_S),
        "requested_batch": (spec.requested_batch, 0, _MOST_EXAMPLES),
        "priority": (spec.priority, -1e6, 1e6),
        "retries": (spec.retries, -1, 100),
    }
    for name, (value, above, most) in bounds.items():
        if value is not None and not above < value <= most:
            raise InputError(f"{name} is {_figure(value)}; it must be above {above:g} and at most {most:g}")
    for what, text in (("profile", spec.profile), *(("gpu_types", each) for each in spec.gpu_types)):
        _short(what, text, 100)
    if len(spec.gpu_types) > 64:
        raise InputError("gpu_types has more than 64 entries")
    if spec.recorded is not None:
        raise InputError("recorded is only for jobs of a trace; remove it")


def _check_batch(batch: Batch, spec: JobSpec) -> None:
    if not 1 <= batch.initial <= batch.max <= _MOST_EXAMPLES:
        raise InputError(
            f"batch: initial {_figure(batch.initial)} and max {_figure(batch.max)} must be 1 <= initial <= max"
        )
    if not 1 <= batch.per_gpu_min <= batch.per_gpu_max <= _MOST_EXAMPLES:
        raise InputError(
            f"batch: per_gpu_min {_figure(batch.per_gpu_min)} and per_gpu_max {_figure(batch.per_gpu_max)} must be 1 <= min <= max"
        )
    least = spec.worker.min * batch.per_gpu_min
    if least > batch.max or batch.per_gpu_min > batch.initial:
        raise InputError(
            f"batch: {spec.worker.min} replicas of at least {batch.per_gpu_min} examples are not possible with "
            f"initial {batch.initial} and max {batch.max}"
        )
    if spec.requested_batch is not None and spec.requested_batch > batch.max:
        raise InputError(f"requested_batch {spec.requested_batch} is more than the batch's max {batch.max}")


def _check_after(after: Sequence[str], jobs: Collection[str]) -> None:
    if len(after) > 100:
        raise InputError("after has more than 100 entries")
    for name in after:
        if name not in jobs:
            near = suggestion(name, _near(name, jobs))
            hint = f"; {near}" if near.startswith("did you mean") else ""
            raise InputError(f"there is no job {name[:100]!r} (after){hint}")


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Candidates for a suggestion: names with the same first letter."""
    return [each for each in known if each[:1] == name[:1]][:1000][-200:]


def _check_fits(spec: JobSpec, nodes: Collection[Node]) -> None:
    types = {node.gpu_type for node in nodes}
    for gpu_type in spec.gpu_types:
        if gpu_type not in types:
            raise UnknownNameError("GPU type", gpu_type, types)
    allowed = [node for node in nodes if not spec.gpu_types or node.gpu_type in spec.gpu_types]
    for role in spec.roles:
        _check_replica(role, allowed if role is spec.worker else nodes)
    workers = spec.worker.min if spec.elastic and spec.batch is not None else spec.requested
    _check_room(spec.worker, workers, allowed, mixed=spec.mixed)
    for role in spec.roles[1:]:
        _check_room(role, role.min, nodes, mixed=True)


def _check_replica(role: Role, nodes: Collection[Node]) -> None:
    """One replica must find all it needs on one node."""
    need = role.demand
    if any(node.takes(need, 1) for node in nodes):
        return
    if need.gpus > max((node.gpus for node in nodes), default=0):
        most = max((node.gpus for node in nodes), default=0)
        raise InputError(
            f"each replica needs {need.gpus} GPUs on one node; the largest node has {most}; request at most {most}"
        )
    for name, amount in need.others(1):
        most_of = max((node.limit(name) for node in nodes), default=0.0)
        if amount > most_of * ROUNDING:
            least = "no node has any" if not most_of else f"the largest node has {_figure(round(most_of, 3))}"
            raise InputError(f"each replica needs {_figure(amount)} of {name[:80]} on one node; {least}")
    raise InputError("no node has all that one replica needs: its GPUs, CPUs, memory and extras together")


def _check_room(role: Role, count: int, nodes: Collection[Node], *, mixed: bool) -> None:
    """The empty cluster must have room for so many replicas, of one GPU type unless they may be mixed."""
    by_type: dict[str, int] = {}
    for node in nodes:
        kind = "" if mixed else node.gpu_type
        by_type[kind] = by_type.get(kind, 0) + node.takes(role.demand, count)
    most = max(by_type.values(), default=0)
    if most < count:
        gpus = count * role.demand.gpus
        what = (
            f"{count} replicas ({gpus} GPUs)"
            if role.demand.only_gpus()
            else f"{count} replicas with their CPUs and memory"
        )
        raise InputError(
            f"the job needs {what}; even the empty cluster has room for only {most}; request fewer, or add nodes"
        )


def _check_quotas(spec: JobSpec, quotas: Mapping[str, int]) -> None:
    """A job that needs more than its user's or team's quota could never start."""
    if spec.elastic and spec.batch is not None:
        gpus = sum(role.min * role.demand.gpus for role in spec.roles)
    else:
        gpus = spec.requested_gpus + sum(role.min * role.demand.gpus for role in spec.roles[1:])
    for group in (spec.user, spec.team):
        quota = quotas.get(group) if group else None
        if quota is not None and gpus > quota:
            raise InputError(
                f"the job needs {gpus} GPU{'' if gpus == 1 else 's'}; the quota of {group} is {quota}, so it could never "
                f"start; ask for at most {quota}, or have an administrator raise the quota (coadapt quota {group} {gpus})"
            )


def _short(what: str, text: str, most: int) -> str:
    if len(text) > most or not text.isprintable():
        raise InputError(f"{what} must be at most {most} printable characters, not {text[:40]!r}...")
    return text


def _figure(value: float) -> str:
    """A number in a few digits; one of a thousand digits must not break the message about it."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}..."


#: Open repetitions in one expression.
_MOST_REPEATS = 6
_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,62}")


def check_metrics(metrics: Mapping[str, str]) -> None:
    """Raise an InputError with the first regular expression that is not allowed."""
    if len(metrics) > 32:
        raise InputError(f"metrics has {len(metrics)} entries; at most 32 are allowed")
    for name, pattern in metrics.items():
        if not _NAME.fullmatch(name):
            raise InputError(
                f"metrics: {name[:80]!r} is not a valid name; use letters, digits, '_', '.', '/' and '-'"
            )
        _check_pattern(name, pattern)


def _check_pattern(name: str, pattern: str) -> None:
    if len(pattern) > 300:
        raise InputError(f"metrics.{name}: the pattern is longer than 300 characters")
    try:
        with warnings.catch_warnings(action="ignore"):
            tree, groups = parser.parse(pattern), re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise InputError(f"metrics.{name}: the pattern is not valid: {str(error)[:80]}") from None
    if groups != 1:
        raise InputError(
            f"metrics.{name}: the pattern must have one group, the value, as in 'acc=([0-9.]+)'; it has {groups}"
        )
    if _repeats(tree, inside=False) > _MOST_REPEATS:
        raise InputError(f"metrics.{name}: the pattern has more than {_MOST_REPEATS} repetitions")


def _repeats(tree: Iterable[Any], *, inside: bool) -> int:
    """Count open repetitions; raises an InputError for nested ones and for back-references."""
    count = 0
    for code, value in tree:
        if code in (constants.GROUPREF, constants.GROUPREF_EXISTS):
            raise InputError("metrics: back-references are not allowed")
        is_open = code in _REPEATS and value[1] > 16
        if is_open and inside:
            raise InputError(
                "metrics: a repetition inside a repetition is not allowed, because it can take exponential time"
            )
        count += is_open
        for part in _parts(value):
            count += _repeats(part, inside=inside or is_open)
    return count


def _parts(value: Any) -> Iterable[Iterable[Any]]:
    if isinstance(value, parser.SubPattern):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each)

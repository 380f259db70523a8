"""Slurm: a unit is a batch job of one node that takes all its GPUs, submitted by ``sbatch``.

Slurm's own commands are used in their text formats, which are the same from release 20.11 on (``--json`` differs by release).
What was seen of 22.05 and is answered here: a job that is listed as ended may still run (the hub waits for the lease); slurmctld
forgets its last seconds, revives a cancelled job and uses its id again (jobs are known by name, which is never used again, and the
agent's claim stops a second life); a requeued job starts again under the same id (``--no-requeue``, and the claim).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from coadapt.errors import InputError
from coadapt.executors.engines._base import (
    EngineNode,
    EngineRefusedError,
    EngineSilentError,
    SeenUnit,
    Unit,
    prefix_of,
)
from coadapt.model import Node

_COMMANDS = ("sbatch", "scancel", "scontrol", "squeue")
#: Seconds that a command of Slurm's may take; slurmctld may be busy or gone.
_ANSWER_S = 10.0
#: Seconds of warning before a time limit.
_WARNING_S = 120
_REFUSALS = re.compile(
    r"invalid|not permitted|denied|violates|unable to (?:find|determine)|requested .* not available", re.I
)
_GPU = re.compile(r"gpu(?::([\w.-]+))?:(\d+)")
_ENDED = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    )
)
_WAITING = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
#: States of a node in which nothing new may run there.
_CLOSED = (
    "DRAIN",
    "DOWN",
    "FAIL",
    "MAINT",
    "NOT_RESPONDING",
    "POWERED_DOWN",
    "POWERING_DOWN",
    "PLANNED_DOWN",
    "UNKNOWN",
)


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users give to ``sbatch``; empty: Slurm's own default."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    #: Generic resources of each node of a pilot (gpu:4).
    gres: str = ""
    #: Time limit as Slurm writes it (1-00:00:00); empty: the partition's.
    time: str = ""
    #: Shell commands before the agent starts, as ``module load cuda``.
    prelude: str = ""
    #: Whether GPUs are only counted, not there: for tests.
    virtual: bool = False

    def flags(self) -> list[str]:
        """Returns the options of ``sbatch`` that say where and for whom."""
        names = ("partition", "account", "qos", "constraint", "reservation", "time")
        return [f"--{name}={value}" for name in names if (value := getattr(self, name))]


class SlurmEngine:
    """Implements ``Engine``.

    Args:
        cluster: identity of the event log, part of the names of units.
        options: where and for whom.
        directory: for output of batch jobs.
    """

    name = "slurm"

    def __init__(self, cluster: str, options: SlurmOptions, directory: Path) -> None:
        self._prefix, self._options, self._directory = prefix_of(cluster), options, directory

    def check(self) -> None:
        """InputError if this machine has no Slurm, or the partition does not exist."""
        missing = [command for command in _COMMANDS if shutil.which(command) is None]
        if missing:
            raise InputError(
                f"Slurm's commands are not on this machine ({', '.join(missing)}); run 'coadapt serve' on a login node"
            )
        try:
            self.nodes()
        except (EngineSilentError, EngineRefusedError) as error:
            raise InputError(str(error)) from None

    def nodes(self) -> list[EngineNode]:
        """Returns the nodes of the partition, with their GPUs, or their CPUs where they have none."""
        found = []
        for text in _run("scontrol", "--oneliner", "show", "node").splitlines():
            fields = _fields(text)
            if "NodeName" not in fields:
                continue
            partitions = fields.get("Partitions", "").split(",")
            if self._options.partition and self._options.partition not in partitions:
                continue
            found += _nodes_of(fields)
        if not found and self._options.partition:
            raise EngineRefusedError(
                f"Slurm has no node in partition {self._options.partition!r}; 'sinfo' lists the partitions"
            )
        return found

    def claim(self, unit: Unit) -> None:
        """Submits a batch job, unless one of this name is there."""
        if _run("squeue", "--noheader", "--all", f"--name={unit.name}", "--format=%i").strip():
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        command, environment = self._command(unit), {**os.environ, **unit.environment}
        _run(*command, text=self._batch(unit), environment=environment)

    def release(self, names: Sequence[str]) -> None:
        """Cancels batch jobs by name: SIGTERM, and SIGKILL after Slurm's KillWait."""
        for name in names:
            _run("scancel", f"--name={name}")

    def units(self) -> list[SeenUnit]:
        """Returns every batch job of this cluster that Slurm lists."""
        found = []
        listed = _run("squeue", "--noheader", "--all", "--states=all", "--format=%j|%T|%r")
        for line in listed.splitlines():
            name, _, rest = line.strip().partition("|")
            state, _, reason = rest.partition("|")
            if name.startswith(self._prefix):
                found.append(SeenUnit(name=name, state=_state(state), reason=_reason(state, reason)))
        return found

    def script(self, unit: Unit) -> str:
        """Returns the command of ``sbatch`` and the batch script."""
        names = ",".join(sorted(unit.environment))
        return f"# {names} from the environment\n{shlex.join(self._command(unit))} <<'END'\n{self._batch(unit)}END\n"

    def _command(self, unit: Unit) -> list[str]:
        node = unit.node
        room = ["--exclusive"] if node.gpu_type == "cpu" else [f"--gres={_gres(node)}"]
        return [
            "sbatch",
            f"--job-name={unit.name}",
            f"--comment={msgspec.json.encode({'coadapt': unit.name, 'node': node.name}).decode()}",
            *("--nodes=1", "--ntasks=1", f"--nodelist={node.name}", *room),
            # a second life of a unit is refused anyway; without requeue Slurm does not even try
            "--no-requeue",
            "--dependency=singleton",
            f"--signal=B:TERM@{_WARNING_S}",
            f"--export={','.join(sorted((*unit.environment, *_PASSED)))}",
            f"--output={self._directory / (unit.name + '.log')}",
            "--open-mode=append",
            *self._options.flags(),
        ]

    def _batch(self, unit: Unit) -> str:
        offer = ["--virtual", f"{unit.node.gpus}:{unit.node.gpu_type}"] if self._options.virtual else []
        return batch_script(offer, self._options.prelude)


#: Variables that an agent needs besides its own.
_PASSED = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "SLURM_CONF")


def batch_script(offer: Sequence[str], prelude: str = "") -> str:
    """Returns a script that becomes the agent: Slurm's signals reach it, and it is all that is left."""
    command = [sys.executable, "-m", "coadapt.cli.main", "node", "join", *offer]
    return "\n".join(
        [
            "#!/bin/sh",
            "# every life of this job has its own; a requeued or revived one is refused by the controller",
            'export COADAPT_GENERATION="$SLURM_JOB_ID.$(date +%s%N).$$"',
            *([prelude] if prelude else []),
            f'exec {shlex.join(command)} "$COADAPT_URL" --name "$COADAPT_NODE"',
            "",
        ]
    )


def pilot_script(
    options: SlurmOptions,
    *,
    name: str = "coadapt-pilot",
    nodes: int,
    url: str,
    token_file: str,
    offer: Sequence[str],
    directory: str,
) -> str:
    """Returns the batch script of a pilot: one agent on each node of an allocation, until its time limit.

    Args:
        options: where and for whom.
        name: of the batch job; its successors have the same.
        nodes: how many nodes.
        url: of the controller's API.
        token_file: file with the token, which all nodes see.
        offer: options of ``coadapt node join`` about GPUs.
        directory: for output and code of jobs, on each node.
    """
    flags = [
        f"#SBATCH {flag}"
        for flag in (
            *options.flags(),
            *([f"--gres={options.gres}"] if options.gres else []),
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            "--no-requeue",
        )
    ]
    agent = [
        sys.executable,
        "-m",
        "coadapt.cli.main",
        "node",
        "join",
        url,
        "--token-file",
        token_file,
        *offer,
    ]
    inner = f'exec {shlex.join(agent)} --name "$SLURMD_NODENAME" --directory {shlex.quote(directory)}/"$SLURM_JOB_ID.$SLURMD_NODENAME"'
    return "\n".join(
        [
            "#!/bin/sh",
            f"#SBATCH --job-name={name}",
            *flags,
            # to every agent, in time to save what runs
            f"#SBATCH --signal=TERM@{_warning_s(options.time)}",
            f"#SBATCH --output={directory}/pilot-%j.log",
            "#SBATCH --open-mode=append",
            *([options.prelude] if options.prelude else []),
            'export COADAPT_REMAINING="$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%L)"',
            'export COADAPT_GENERATION="$SLURM_JOB_ID.$(date +%s%N)"',
            f"exec srun --kill-on-bad-exit=0 --wait=0 sh -c {shlex.quote(inner)}",
            "",
        ]
    )


def _warning_s(limit: str) -> int:
    """Seconds of warning; less where the limit is short, as Slurm warns up to a minute early."""
    limit_s = time_left_s(limit)
    return _WARNING_S if limit_s is None else max(int(min(_WARNING_S, limit_s / 6)), 5)


class PilotSeen(NamedTuple):
    """A batch job of a pilot that has not ended."""

    name: str
    job: str
    state: Literal["waiting", "running", "ending"]
    #: Seconds until its time limit, and the limit; None: there is none, or it is not known.
    left_s: float | None
    limit_s: float | None


def pilots_seen(names: Sequence[str]) -> list[PilotSeen]:
    """Returns the batch jobs of these names that have not ended; EngineSilentError if Slurm does not answer."""
    listed = _run("squeue", "--noheader", "--all", f"--name={','.join(names)}", "--format=%j|%i|%T|%L|%l")
    found = []
    for line in listed.splitlines():
        name, job, word, left, limit = line.strip().split("|")
        state = _state(word)
        if state != "ended":
            found.append(PilotSeen(name, job, state, time_left_s(left), time_left_s(limit)))
    return found


def cancel_pilots(names: Sequence[str]) -> None:
    """Cancels the batch jobs of these names: SIGTERM, and SIGKILL after Slurm's KillWait."""
    for name in names:
        _run("scancel", f"--name={name}")


def submit_script(script: str, environment: Mapping[str, str] = os.environ) -> str:
    """Submits a batch script; returns the job id. InputError if Slurm refuses it."""
    try:
        return (
            _run("sbatch", "--parsable", text=script, environment=dict(environment)).strip().partition(";")[0]
        )
    except (EngineRefusedError, EngineSilentError) as error:
        raise InputError(str(error)) from None


def time_left_s(text: str) -> float | None:
    """Returns the seconds in Slurm's "time left" (1-02:03:04, 02:03:04, 03:04); None: unlimited, or not known."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _run(*command: str, text: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
            env=environment,
        )
    except FileNotFoundError:
        raise EngineRefusedError(f"there is no command {command[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise EngineSilentError(f"Slurm does not answer {command[0]} within {_ANSWER_S:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    said = " ".join(done.stderr.split())[:300]
    if _REFUSALS.search(said):
        raise EngineRefusedError(f"Slurm refuses {command[0]}: {said}")
    raise EngineSilentError(f"Slurm does not answer {command[0]}: {said}")


def _fields(line: str) -> dict[str, str]:
    """Fields NAME=VALUE of a line of scontrol; values may hold blanks, names do not."""
    parts = re.split(r"(?:^|\s)([A-Z][A-Za-z_/:]*)=", line)
    return dict(zip(parts[1::2], (value.strip() for value in parts[2::2]), strict=True))


def _nodes_of(fields: Mapping[str, str]) -> list[EngineNode]:
    name, state = fields["NodeName"], fields.get("State", "UNKNOWN").upper()
    closed = ""
    if any(word in state for word in _CLOSED):
        reason = fields.get("Reason", "").partition(" [")[0]
        closed = f"{state.lower()}{f': {reason}' if reason else ''}"
    gpus = _GPU.findall(fields.get("Gres", ""))
    if not gpus:
        count = int(fields.get("CPUTot", "0"))
        kinds = [("cpu", count)] if count else []
    else:
        kinds = [(kind or "gpu", int(count)) for kind, count in gpus]
    # a unit takes one kind; a node with several offers the one it has most of
    kinds = sorted(kinds, key=lambda each: -each[1])[:1]
    return [
        EngineNode(node=Node(name=name, gpus=count, gpu_type=kind.lower()), closed=closed)
        for kind, count in kinds
    ]


def _gres(node: Node) -> str:
    return f"gpu:{node.gpus}" if node.gpu_type == "gpu" else f"gpu:{node.gpu_type}:{node.gpus}"


def _state(state: str) -> Literal["waiting", "running", "ending", "ended"]:
    if state in _ENDED:
        return "ended"
    if state in _WAITING:
        return "waiting"
    return "ending" if state in ("COMPLETING", "STAGE_OUT", "STOPPED", "SIGNALING") else "running"


def _reason(state: str, reason: str) -> str:
    given = "" if reason in ("", "None") else reason
    if state in _ENDED:
        return f"{state.lower()}{f' ({given})' if given else ''}"
    return given

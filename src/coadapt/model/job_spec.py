"""The specification of a job: what the user asked for. One schema for plan, submit and simulate."""

from __future__ import annotations

from typing import Literal

from coadapt.model._base import Fact
from coadapt.model.resources import Resources

WORKER, SERVER = "worker", "server"


class Role(Fact, frozen=True):
    """One kind of replica: workers, and with parameter servers also servers."""

    name: str = WORKER
    min: int = 1
    max: int = 1
    demand: Resources = Resources()


class Batch(Fact, frozen=True):
    """Limits of the batch size, in examples. ``initial`` is M0, the reference batch size."""

    initial: int
    max: int
    per_gpu_min: int
    per_gpu_max: int
    mode: Literal["adaptive", "fixed"] = "adaptive"
    #: Whether a lone replica beyond M0 makes two passes, for the noise's sake, only in the few steps that are sampled, as
    #: ``coadapt.torch`` does; or in every step, as Pollux' agent does.
    samples_alone: bool = False


class Recorded(Fact, frozen=True):
    """What a trace recorded about the job, in seconds of the trace's clock."""

    start_s: float | None = None
    end_s: float | None = None


class JobSpec(Fact, frozen=True):
    """A job as asked for. Amounts of work are in examples, or in seconds for a job without a model."""

    name: str
    user: str = ""
    team: str = ""
    roles: tuple[Role, ...] = (Role(),)
    #: GPU types the job may use; empty: any.
    gpu_types: tuple[str, ...] = ()
    #: Replicas the user asked for; policies that do not choose sizes give exactly these.
    requested: int = 1
    #: Total batch size the user asked for; None where the job has no model.
    requested_batch: int | None = None
    batch: Batch | None = None
    #: Declared amount of training, where it is declared.
    epochs: float | None = None
    target: str | None = None
    data_size: int | None = None
    #: Name of the profile that says how the job behaves; empty: rigid, known by its recorded duration.
    profile: str = ""
    #: Seconds of work at the requested size, for a job without a profile.
    duration_s: float | None = None
    recorded: Recorded | None = None
    priority: int = 0
    deadline_s: float | None = None  # after submission
    time_limit_s: float | None = None
    after: tuple[str, ...] = ()
    preemptible: bool = True
    retries: int = 0
    mixed: bool = False
    #: Synchronisation: ring all-reduce, or parameter servers (synchronous or asynchronous).
    sync: Literal["allreduce", "ps", "ps-async"] = "allreduce"
    command: tuple[str, ...] = ()
    envs: dict[str, str] = {}
    #: Frozen code that the command runs in (its hash, see ``wire.api``); empty: where the keeper runs.
    code: str = ""
    #: Runs once in the code's directory before the first replica of an attempt, on each node; empty: nothing.
    setup: tuple[str, ...] = ()
    #: What to read from standard output: a metric's name and a regular expression with one group.
    metrics: dict[str, str] = {}
    version: int = 1

    @property
    def worker(self) -> Role:
        """The role that trains."""
        return self.roles[0]

    @property
    def gpus_per_replica(self) -> int:
        """GPUs one worker needs (more than one: model parallelism inside a replica)."""
        return self.roles[0].demand.gpus

    @property
    def elastic(self) -> bool:
        """True if the scheduler may choose how many workers there are."""
        return self.roles[0].min < self.roles[0].max

    @property
    def requested_gpus(self) -> int:
        """GPUs at the size the user asked for."""
        return self.requested * self.roles[0].demand.gpus

    def role(self, name: str) -> Role:
        """The role called ``name``."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

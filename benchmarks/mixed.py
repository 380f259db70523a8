"""Sia's simulated setting, as arguments to our simulator: 64 GPUs of three types, for any policy.

``python -m benchmarks.mixed [WORKLOAD ...] [--policy NAME] [--seeds N]`` prints one line per workload and seed.

As in the simulator released with Sia (SOSP 2023; README of the data): decisions every 60 s; a restart costs by task, and
nothing where type and shape stay and only the nodes change; tasks get on more slowly than their tables say, by a
factor which shows in no step time; the largest per-GPU batch size is that of the type.

What a job knows at the start: Sia profiles it on one GPU of every type. The released simulator charges no time for that
and uses nothing of it but the ratios of throughput at the largest batch sizes, and these only to project from a type
on which the job has run. So do we (``one_gpu``), for every policy's curves, with each type's batch limits.

``released=True`` is the released simulator to the letter in one thing more: Sia's curves look at batch sizes only up to
the one in the workload, though the agents go on to larger ones. It costs Sia some 4% of average JCT and is no idea of
its paper, so that other policies are compared with Sia without it.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
import numpy as np

from benchmarks.published import data_dir
from benchmarks.smoke import few
from coadapt.model import Batch, JobSpec, Placement, parse_cluster
from coadapt.plugins import PLACERS, make_policy
from coadapt.policies._base import Policy, traits_of
from coadapt.prediction.step_time._base import StepTimeModel
from coadapt.scheduler import CurveSource, FittedCurves
from coadapt.scheduler.curve_source import ByType
from coadapt.scheduler.state.job_state import JobState
from coadapt.simulation.engine.training_model import TrainingOptions
from coadapt.simulation.generate import generate
from coadapt.simulation.run import Setting, Simulation, simulate
from coadapt.simulation.truth.measured_tables import TableTruth, read_profiles
from coadapt.simulation.truth.profiles import spec_for
from coadapt.store import MemoryLog

Submission = tuple[float, str, JobSpec]
#: 6 nodes x 4 T4, 2 x 8 A100, 3 x 8 RTX 2080 Ti.
CLUSTER = "6x4:t4,2x8:a100,3x8:rtx"
#: Seconds that a restart really takes, by task.
RESTART_S = {
    "bert": 120.0,
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "imagenet": 250.0,
    "ncf": 15.0,
    "yolov3": 80.0,
}
#: How many times as long as its tables say a task takes.
SLOWER = {"bert": 1.2, "cifar10": 1.8, "deepspeech2": 1.2, "imagenet": 1.2, "ncf": 1.5, "yolov3": 1.2}
#: Published with Sia; without ncf, like all of Sia's.
PUBLISHED = ("rate10-1", "philly-1")
#: Drawn as Pollux' and Sia's were: 120 jobs in 8 hours; those with even numbers without very long jobs.
GENERATED = tuple(f"generated-{seed}" for seed in range(1, 7))
WORKLOADS = (*PUBLISHED, *GENERATED)


class SlowedTask:
    """A task that takes longer than its step times say: everywhere as if it had that much more to do."""

    def __init__(self, truth: TableTruth, factor: float) -> None:
        self.epochs, self.gpu_types, self.max_workers = truth.epochs, truth.gpu_types, truth.max_workers
        self.data_size = round(truth.data_size * factor)
        self._truth, self._factor = truth, factor
        self._marks = tuple(mark * factor for mark in truth.epoch_marks())

    def limits(self, gpu_type: str) -> Batch:
        return self._truth.limits(gpu_type)

    def epoch_marks(self) -> tuple[float, ...]:
        return self._marks

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        return self._truth.step(shape, atomic_batch, gpu_type)

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        return self._truth.gradients(batch, epoch)

    def steps_until(self, batch: int, epoch: int) -> float:
        return self._truth.steps_until(batch, epoch) * self._factor

    def metric(self, batch: int, epoch: int) -> float | None:
        return self._truth.metric(batch, epoch)

    def one_gpu(self) -> dict[str, float]:
        """Examples per second on one GPU of each type, at the largest batch size."""
        largest = {name: self.limits(name).per_gpu_max for name in self.gpu_types}
        return {name: batch / self.step((1,), batch, name)[0] for name, batch in largest.items()}


@cache
def tasks() -> dict[str, SlowedTask]:
    """The six tasks as measured on the three types."""
    directory = data_dir()
    measured = read_profiles(directory / "sia", curves=directory / "pollux")
    return {name: SlowedTask(truth, SLOWER[name]) for name, truth in measured.items()}


class MixedCurves(FittedCurves):
    """Fitted curves that know every type's batch limits and the throughput of one of its GPUs."""

    def __init__(
        self, known: Mapping[str, SlowedTask], *, model: str | StepTimeModel, up_to_requested: bool
    ) -> None:
        super().__init__(step_time_model=model)
        self._known, self._up_to_requested = known, up_to_requested
        self._one_gpu = {name: task.one_gpu() for name, task in known.items()}

    def by_type(self, job: JobState) -> ByType:
        """See ``FittedCurves``."""
        spec = job.spec
        if spec.profile not in self._known or spec.batch is None:
            return ByType()
        task = self._known[spec.profile]
        return ByType(
            limits={name: self._limits(spec, spec.batch, name) for name in task.gpu_types},
            one_gpu=self._one_gpu[spec.profile],
        )

    def _limits(self, spec: JobSpec, batch: Batch, gpu_type: str) -> Batch:
        fits = self._known[spec.profile].limits(gpu_type)
        most = spec.requested_batch if self._up_to_requested and spec.requested_batch else batch.max
        return msgspec.structs.replace(
            batch, max=most, per_gpu_min=fits.per_gpu_min, per_gpu_max=fits.per_gpu_max
        )


def restart_cost(spec: JobSpec, before: Placement, after: Placement) -> float:
    """By task; a job that only goes to other nodes of the same kind goes on at once."""
    same = (before.shape, before.gpu_type) == (after.shape, after.gpu_type)
    return 0.0 if before and same else RESTART_S.get(spec.profile, 30.0)


def workload(name: str) -> list[Submission]:
    """One of ``WORKLOADS``."""
    if name in GENERATED:
        seed = int(name.rpartition("-")[2])
        known = {task: truth for task, truth in tasks().items() if task != "ncf"}
        jobs = generate(seed, 120, long_jobs=seed % 2 == 1, profiles=known, gpu_type="t4")
        return [(at, spec.name, spec) for at, spec in jobs]
    found = []
    with (data_dir() / "sia" / "workloads" / f"{name}.csv").open() as stream:
        for row in csv.DictReader(stream):
            task, replicas, batch = row["application"], int(row["num_replicas"]), int(row["batch_size"])
            spec = spec_for(row["name"], tasks()[task], task, replicas=replicas, batch=batch)
            found.append((float(row["time"]), row["name"], spec))
    return found


def run(
    jobs: Sequence[Submission],
    policy: Policy,
    *,
    interval_s: float | None = 60.0,
    seed: int = 0,
    curves: CurveSource | None = None,
    released: bool = False,
) -> Simulation:
    """Some jobs in Sia's setting; without ``interval_s`` decisions are made on events. ``curves``: other than the usual."""
    model = traits_of(policy).step_time_model
    if curves is None:
        curves = MixedCurves(tasks(), model=model, up_to_requested=released)
    setting = Setting(
        interval_s=interval_s,
        change_cost=restart_cost,
        training=TrainingOptions(report_s=interval_s or 30.0, resolution_s=1.0),
        seed=seed,
    )
    return simulate(
        jobs,
        parse_cluster(CLUSTER),
        policy,
        MemoryLog(keep=False),
        placer=PLACERS.load(policy.placer)(),
        truths=tasks(),
        curves=curves,
        setting=setting,
    )


def figures(simulation: Simulation) -> dict[str, float]:
    """What is compared. p99 as in Sia's own script: the value at that rank, here mostly the largest."""
    jobs = list(simulation.state.jobs.values())
    ends = {job.id: job.finished_at for job in jobs if job.finished_at is not None}
    if len(ends) != len(jobs):
        raise SystemExit(f"{len(jobs) - len(ends)} jobs did not finish")
    jcts = np.sort([ends[job.id] - job.submitted_at for job in jobs])
    return {
        "avg_jct_s": float(jcts.mean()),
        "p50_jct_s": float(np.median(jcts)),
        "p99_jct_s": float(jcts[int(0.99 * len(jcts))]),
        "makespan_s": max(ends.values()) - min(job.submitted_at for job in jobs),
        "changes": float(np.mean([job.changes for job in jobs])),
        "num_jobs": len(jobs),
        "decisions": simulation.state.decisions,
        "decision_cpu_s": simulation.decision_cpu_s,
        "cpu_s": simulation.cpu_s,
    }


def measured(policy: str, name: str) -> dict[str, float]:
    """What the released simulator gave on the same files (measured.csv)."""
    with (data_dir() / "sia" / "measured.csv").open() as stream:
        for row in csv.DictReader(stream):
            if (row["policy"], row["workload"], row["cluster"]) == (policy, name, "mixed64"):
                return {key: float(row[key]) for key in row if key.endswith("_s")}
    raise KeyError((policy, name))


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--policy", default="sia")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--events", action="store_true", help="decide on events, not every 60 s")
    parser.add_argument("--released", action="store_true", help="curves up to the requested batch size only")
    arguments = parser.parse_args()
    for name in few(tuple(arguments.workloads or WORKLOADS)):
        if name not in WORKLOADS:
            parser.error(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
        for seed in range(arguments.seeds):
            got = figures(
                run(
                    few(workload(name), 5),
                    make_policy(arguments.policy),
                    interval_s=None if arguments.events else 60.0,
                    seed=seed,
                    released=arguments.released,
                )
            )
            print(
                f"{name:12} {arguments.policy} seed {seed}: JCT {got['avg_jct_s']:8.1f} s, median {got['p50_jct_s']:6.0f}, "
                f"p99 {got['p99_jct_s']:7.0f}, makespan {got['makespan_s']:7.0f}, {got['changes']:.1f} changes per job, "
                f"{1000 * got['decision_cpu_s'] / got['decisions']:5.1f} ms CPU per decision",
                flush=True,
            )


if __name__ == "__main__":
    main()

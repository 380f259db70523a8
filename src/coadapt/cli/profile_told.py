"""What short runs have told, kept in a file and joined with what was known before."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median, stdev
from typing import NamedTuple

import msgspec
from scipy.special import ndtri, stdtrit

from coadapt.cli.profile_runs import Result
from coadapt.configure.memory import MemorySample
from coadapt.configure.problem import Evidence, Option
from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.predict import work_epochs
from coadapt.predict._base import COVERAGE
from coadapt.predict.samples import EpochSample, MetricSample, epoch_table, metric_table
from coadapt.predict.work_epochs import ByNoise, Work

#: Stands for a metric that the runs are still to tell.
NOTHING = MetricSample(batch=1, epochs=1.0, metric=0.0)


class Ran(Fact, frozen=True, kw_only=True):
    """What a run told. ``metrics``: (passes, value); ``noise``: (passes, noise scale)."""

    gpu_type: str
    workers: int
    nodes: int
    batch: int
    seconds: float
    pass_s: float
    metrics: tuple[tuple[float, float], ...] = ()
    reference: bool = False
    accumulation: int = 0
    passes_s: tuple[float, ...] = ()
    setup_s: float | None = None
    beside_s: float | None = None
    memory_bytes: float | None = None
    noise: tuple[tuple[float, float], ...] = ()
    #: Its last lines, where it failed: then it told no times.
    failed: str | None = None

    def of(self, option: Option) -> bool:
        """Whether it was a short run of this option."""
        mine = (self.gpu_type, self.workers, self.batch)
        return not self.reference and mine == (option.gpu_type, option.replicas, option.batch)


def ran_of(option: Option, result: Result, *, reference: bool) -> Ran:
    """A run's result, and whose it is."""
    return Ran(
        gpu_type=option.gpu_type,
        workers=option.replicas,
        nodes=option.nodes,
        batch=option.batch,
        accumulation=option.accumulation,
        reference=reference,
        seconds=result.seconds,
        pass_s=result.pass_s,
        passes_s=result.passes_s,
        setup_s=result.setup_s,
        beside_s=result.beside_s,
        metrics=result.metrics,
        memory_bytes=result.memory_bytes,
        noise=result.noise,
    )


def failed_of(option: Option, said: str) -> Ran:
    """A run that told nothing but that it failed."""
    return Ran(
        gpu_type=option.gpu_type,
        workers=option.replicas,
        nodes=option.nodes,
        batch=option.batch,
        accumulation=option.accumulation,
        seconds=0.0,
        pass_s=0.0,
        failed=said,
    )


def evidence_of(before: Evidence, ran: list[Ran], *, gpus_per_node: int, higher_is_better: bool) -> Evidence:
    """What runs have told, beside what was known before."""
    epochs = {name: list(table.samples) for name, table in before.epochs.items()}
    metrics = [s for s in (before.metrics.samples if before.metrics else ()) if s != NOTHING]
    memory = list(before.memory)
    for each in ran:
        sample = EpochSample(batch=each.batch, workers=each.workers, nodes=each.nodes, epoch_s=each.pass_s)
        epochs.setdefault(each.gpu_type, []).append(sample)
        metrics += [MetricSample(batch=each.batch, epochs=at, metric=value) for at, value in each.metrics]
        if each.memory_bytes is not None:
            local = each.batch / each.workers / (each.accumulation + 1)
            memory.append(MemorySample(local, each.memory_bytes))
    return Evidence(
        epochs={name: epoch_table(found, gpus_per_node=gpus_per_node) for name, found in epochs.items()},
        metrics=metric_table(metrics, higher_is_better=higher_is_better) if metrics else None,
        memory=tuple(memory),
    )


def work_of(evidence: Evidence, ran: list[Ran]) -> Work | None:
    """How passes become work. Measured gradient noise of the run with most of it, carried to other batch sizes; else the first metrics of runs at
    other batch sizes: far from the target, but all there is."""
    noisy = max(ran, key=lambda each: (len(each.noise), -each.batch), default=None)
    batches = {sample.batch for sample in evidence.metrics.samples} if evidence.metrics else set()
    if noisy is not None and noisy.noise and len(batches) < 2:
        at, phi = zip(*noisy.noise, strict=True)
        return ByNoise(initial=float(noisy.batch), epochs=at, phi=phi)
    known = evidence.metrics
    return work_epochs.fit(known) if known is not None and known.samples else None


class Beside(NamedTuple):
    """What is not passes, as runs have shown: seconds before the first one, seconds beside each, and how runs differ (spread of the logarithm)."""

    setup_s: float | None
    each_s: float | None
    run_sd: float


def beside(ran: list[Ran]) -> Beside:
    """The start of a program is the same work whatever its options: how it differs from run to run is how the machine does."""
    setups = [each.setup_s for each in ran if each.setup_s]
    others = [each.beside_s for each in ran if each.beside_s is not None]
    return Beside(
        setup_s=median(setups) if setups else None,
        each_s=median(others) if others else None,
        run_sd=_scatter(setups),
    )


def _scatter(values: list[float]) -> float:
    """Spread of the logarithm of one more value, wider where few are known (Student's t in units of the normal)."""
    if len(values) < 3:
        return 0.0
    share = (1 + COVERAGE) / 2
    wider = float(stdtrit(len(values) - 1, share) / ndtri(share))
    return stdev([math.log(value) for value in values]) * math.sqrt(1 + 1 / len(values)) * wider


def load(kept: Path) -> list[Ran]:
    """Runs of an earlier command."""
    if not kept.exists():
        return []
    try:
        return msgspec.json.decode(kept.read_bytes(), type=list[Ran])
    except (msgspec.MsgspecError, OSError) as error:
        raise InputError(f"--resume {kept}: not what runs have told ({error}); name another file") from None


def save(kept: Path | None, ran: list[Ran]) -> None:
    """All of it or nothing."""
    if kept is None:
        return
    part = kept.with_name(f".{kept.name}.part")
    try:
        part.write_bytes(msgspec.json.encode(ran))
        part.replace(kept)
    except OSError as error:
        raise InputError(f"--resume {kept}: cannot write: {error.strerror}") from None

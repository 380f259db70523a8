"""A measuring session (``coadapt plan --profile``): short runs of the user's command, then the plan.

Each run is the user's command with an option filled in (``short_run``). The session runs the option whose measurement is
worth most (``next_run``) until enough is known or a cap is reached. An option that fails is left out, and its last lines
are shown; after "out of memory" so are all options that need as much memory. If the first option fails, the command is
at fault and the session ends. Results are saved in a file and combined with the evidence from before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median, stdev
from typing import NamedTuple

import msgspec
from scipy.special import ndtri, stdtrit

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.planning.answer import Planned
from coadapt.planning.forecasts import scatter_of
from coadapt.planning.next_run import next_run
from coadapt.planning.plan_api import Asked, answer, ask, forecast_of
from coadapt.planning.problem import HOUR_S, Evidence, MemorySample, Option
from coadapt.planning.request import Request
from coadapt.planning.short_run import Result, RunFailedError, compiled, filled_command, rate_of, run_once
from coadapt.prediction._base import COVERAGE
from coadapt.prediction.samples import passes
from coadapt.prediction.samples.passes import ByNoise, Work
from coadapt.prediction.samples.sample_table import EpochSample, MetricSample, epoch_table, metric_table
from coadapt.progress import Bars, note
from coadapt.units import format_duration

#: Stands for a metric that the runs are still to tell.
NOTHING = MetricSample(batch=1, epochs=1.0, metric=0.0)


class Ran(Fact, frozen=True, kw_only=True):
    """The result of a run. ``metrics``: (passes, value); ``noise``: (passes, noise scale)."""

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
    #: The last lines of a failed run, which has no times.
    failed: str | None = None

    def of(self, option: Option) -> bool:
        """Whether this was a short run of ``option``."""
        mine = (self.gpu_type, self.workers, self.batch)
        return not self.reference and mine == (option.gpu_type, option.replicas, option.batch)


def ran_of(option: Option, result: Result, *, reference: bool) -> Ran:
    """The ``result`` of a run of ``option``; ``reference``: the long run that shows the course of the metric."""
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
    """The record of a failed run, with the last lines that it ``said``."""
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
    """Combine the results of runs with the evidence from before.

    Args:
        before: The evidence from before.
        ran: Results of the runs.
        gpus_per_node: GPUs of a node.
        higher_is_better: Whether a higher metric is better.
    """
    epochs = {name: list(table.samples) for name, table in before.epochs.items()}
    metrics = [s for s in (before.metrics.samples if before.metrics else ()) if s != NOTHING]
    memory = list(before.memory)
    first = max((sample.run for sample in metrics), default=-1) + 1
    for run, each in enumerate(ran, first):
        sample = EpochSample(batch=each.batch, workers=each.workers, nodes=each.nodes, epoch_s=each.pass_s)
        epochs.setdefault(each.gpu_type, []).append(sample)
        metrics += [
            MetricSample(batch=each.batch, epochs=at, metric=value, run=run) for at, value in each.metrics
        ]
        if each.memory_bytes is not None:
            local = each.batch / each.workers / (each.accumulation + 1)
            memory.append(MemorySample(local, each.memory_bytes))
    return Evidence(
        epochs={
            name: epoch_table(found, gpus_per_node=gpus_per_node, gpu_type=name)
            for name, found in epochs.items()
        },
        metrics=metric_table(metrics, higher_is_better=higher_is_better) if metrics else None,
        memory=tuple(memory),
    )


def work_of(evidence: Evidence, ran: list[Ran]) -> Work | None:
    """How passes become work, by the results of runs; None if they do not determine it.

    Where metrics are known at fewer than two batch sizes, it follows from the measured gradient noise of the run with most
    of it, converted to other batch sizes. Else it follows from the metrics at different batch sizes.
    """
    noisy = max(ran, key=lambda each: (len(each.noise), -each.batch), default=None)
    batches = {sample.batch for sample in evidence.metrics.samples} if evidence.metrics else set()
    if noisy is not None and noisy.noise and len(batches) < 2:
        at, phi = zip(*noisy.noise, strict=True)
        return ByNoise(initial=float(noisy.batch), epochs=at, phi=phi)
    known = evidence.metrics
    return passes.fit(known) if known is not None and known.samples else None


class Beside(NamedTuple):
    """Time of a run outside its passes: seconds before the first, seconds beside each, and scatter of the logarithm."""

    setup_s: float | None
    each_s: float | None
    run_sd: float


def beside(ran: list[Ran]) -> Beside:
    """Time outside the passes of all runs.

    The start of a program is the same work whatever its options, so its scatter between runs is that of the machine.
    """
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
    """Read the results of earlier runs from a file."""
    if not kept.exists():
        return []
    try:
        return msgspec.json.decode(kept.read_bytes(), type=list[Ran])
    except (msgspec.MsgspecError, OSError) as error:
        raise InputError(
            f"--resume {kept}: not a file of measured runs ({error}); give another file"
        ) from None


def save(kept: Path | None, ran: list[Ran]) -> None:
    """Write the results to a file atomically."""
    if kept is None:
        return
    part = kept.with_name(f".{kept.name}.part")
    try:
        part.write_bytes(msgspec.json.encode(ran))
        part.replace(kept)
    except OSError as error:
        raise InputError(f"--resume {kept}: cannot write: {error.strerror}") from None


@dataclass(frozen=True)
class Caps:
    """Limits on the runs, the time and the cost of measuring."""

    runs: int = 12
    run_epochs: int = 1
    reference_epochs: int | None = None
    run_s: float = 600.0
    total_s: float | None = None
    cost: float | None = None


class Session:
    """The runs of one ``coadapt plan --profile``.

    Args:
        request: What the user asked for.
        asked: The question with its options.
        template: The training command with placeholders.
        caps: Limits on measuring.
        kept: File of results, read at the beginning and written after every run; None: none.
    """

    def __init__(self, request: Request, asked: Asked, template: str, caps: Caps, kept: Path | None) -> None:
        self._request, self._asked, self._template, self._caps, self._kept = (
            request,
            asked,
            template,
            caps,
            kept,
        )
        self._options = list(asked.options)
        self._patterns = compiled(request.read_spec().get("metrics", {}))
        known = load(kept) if kept is not None else []
        self.ran = [each for each in known if each.failed is None]
        self._failures = [each for each in known if each.failed is not None]
        self._failed: set[Option] = set()
        #: Examples of one backward pass on one GPU that were too many for its memory.
        self._too_many = float("inf")
        for option in self._options:
            for each in self._failures:
                if each.of(option) and each.accumulation == option.accumulation:
                    self._leave_out(
                        option,
                        str(each.failed),
                        f"failed in an earlier session; give --resume another file than {kept} to try it again",
                    )

    def measure(self) -> None:
        """Run options until enough is known or a cap is reached."""
        reference = min(self._options, key=lambda option: (option.batch, option.gpus))
        began = time.monotonic()
        with Bars() as bars:
            if self._caps.reference_epochs and not any(each.reference for each in self.ran):
                self._run(reference, self._caps.reference_epochs, self._caps.run_s * 10, reference=True)
            while len([each for each in self.ran if not each.reference]) < self._caps.runs:
                if self._capped(time.monotonic() - began):
                    break
                option = self._next()
                if option is None or len(self._failed) > self._caps.runs:
                    break
                try:
                    self._run(option, self._caps.run_epochs, self._caps.run_s)
                except RunFailedError as error:
                    if not self.ran:
                        raise
                    self._leave_out(option, str(error), f"{error}; this option is skipped")
                    self._failures.append(failed_of(option, str(error)))
                    save(self._kept, [*self.ran, *self._failures])
                    continue
                said = f"batch {option.batch} on {option.gpus}: {self.ran[-1].pass_s:.3g} s a pass"
                bars.update(said, len(self.ran), self._caps.runs)

    def evidence(self) -> Evidence:
        """All evidence so far."""
        return evidence_of(
            self._asked.evidence,
            self.ran,
            gpus_per_node=self._request.gpus_per_node,
            higher_is_better=self._asked.question.higher_is_better,
        )

    def possible(self, options: Sequence[Option]) -> list[Option]:
        """Options without those that failed; at least one."""
        found = self.left(options)
        if not found:
            raise InputError("no options remain: the command failed with every one")
        return found

    def left(self, options: Sequence[Option]) -> list[Option]:
        """Options without those that failed."""
        return [o for o in options if o not in self._failed and _local(o) < self._too_many]

    def _next(self) -> Option | None:
        options = self.possible(self._options)
        done = {i for i, option in enumerate(options) if any(each.of(option) for each in self.ran)}
        evidence = self.evidence() if self.ran else None
        forecast = None
        if evidence is not None and evidence.epochs:
            scatter = scatter_of((each.batch, each.metrics) for each in self.ran)
            known = replace(self._asked, evidence=evidence, work=work_of(evidence, self.ran), scatter=scatter)
            forecast = forecast_of(known)
        question = self._asked.question
        if question.target is not None and (evidence is None or evidence.metrics is None):
            question = msgspec.structs.replace(question, target=None, epochs=question.epochs or 1.0)
        i = next_run(question, options, forecast, done)
        return None if i is None else options[i]

    def _capped(self, elapsed_s: float) -> bool:
        paid = sum(
            each.seconds * each.workers * self._asked.question.price(each.gpu_type) / HOUR_S
            for each in self.ran
        )
        caps = self._caps
        late = caps.total_s is not None and elapsed_s >= caps.total_s
        if not late and (caps.cost is None or paid < caps.cost):
            return False
        spent = format_duration(sum(each.seconds for each in self.ran))
        note(f"measuring stopped at its limit: {spent}, {self._asked.question.amount(paid)}")
        return True

    def _leave_out(self, option: Option, error: str, said: str) -> None:
        self._failed.add(option)
        if "out of memory" in error.lower():
            self._too_many = min(self._too_many, _local(option))
        note(f"batch {option.batch} on {option.gpus}: {said}")

    def _run(self, option: Option, epochs: int, limit_s: float, *, reference: bool = False) -> None:
        question = self._asked.question
        command = filled_command(
            self._template,
            option,
            epochs=epochs,
            lr=rate_of(self._request, self._asked.spec, option, min(each.batch for each in self._options)),
            # of its own: the run that is planned for will have another, too
            seed=self._request.seed + len(self.ran),
        )
        metric = question.metric if question.target is not None or self.aimed else None
        result = run_once(
            command.line, command.environment, metric=metric, limit_s=limit_s, patterns=self._patterns
        )
        self.ran.append(ran_of(option, result, reference=reference))
        save(self._kept, [*self.ran, *self._failures])

    @property
    def aimed(self) -> bool:
        """Whether there is a target, or one that was dropped because no metric is known yet: the runs may report it."""
        return bool(
            self._request.target or self._request.accuracy is not None or self._asked.spec.get("target")
        )


def _local(option: Option) -> float:
    return option.batch / option.replicas / (option.accumulation + 1)


#: Passes of a short run that distinguish the curve of its batch size from the reference's.
_TELLING = 3


def measure_and_plan(request: Request, template: str, caps: Caps, kept: str | None) -> Planned:
    """Measure by short runs, then plan with the results.

    Args:
        request: What the user asked for.
        template: The training command with placeholders.
        caps: Limits on measuring.
        kept: File of results, which a later session continues from; None: none.
    """
    if "{batch_size}" not in template and "COADAPT_BATCH_SIZE" not in template:
        raise InputError(
            "the command has no placeholder for the batch size; insert {batch_size}, for example 'python train.py --bs {batch_size}'"
        )
    past = ask(request).evidence if request.samples or request.pool else _nothing_yet(request)
    session = Session(request, ask(request, past), template, caps, Path(kept) if kept else None)
    session.measure()
    ran = session.ran
    # a deadline that is a moment has come nearer while measuring
    later = replace(request, now=datetime.now())
    others = beside(ran)
    notes = [f"measured by {len(ran)} runs in {format_duration(sum(each.seconds for each in ran))}"]
    if others.setup_s is not None and request.setup_s is None:
        later = replace(later, setup_s=others.setup_s)
        notes.append(f"starting and ending a run took {format_duration(others.setup_s)}, counted as set-up")
    if others.each_s is not None and request.validation_s is None:
        later = replace(later, validation_s=others.each_s)
    if others.run_sd > 0:
        later = replace(later, run_sd=others.run_sd)
        notes.append(f"the time for the same work varied by {math.expm1(others.run_sd):.0%} from run to run")
    if caps.run_epochs < _TELLING and session.aimed:
        notes.append(
            f"short runs of {caps.run_epochs} epochs say little about the metric at each batch size; --run-epochs {_TELLING} says more"
        )
    evidence = session.evidence()
    # a target that nothing was known about was dropped above; now something may be known
    asked = ask(later, evidence, work_of(evidence, ran))
    scatter = scatter_of((each.batch, each.metrics) for each in ran)
    asked = replace(
        asked, scatter=scatter, options=session.possible(asked.options), more=session.left(asked.more)
    )
    planned = answer(later, asked, template)
    return replace(planned, notes=(*notes, *planned.notes))


def _nothing_yet(request: Request) -> Evidence:
    """Enough to know the options; a target waits until the metric has been seen."""
    spec = request.read_spec()
    if request.batch is None and not spec.get("batch"):
        raise InputError("no batch sizes: give --batch, for example 32..4096, or batch in the job file")
    aimed = request.target or spec.get("target") or request.accuracy is not None
    return Evidence(metrics=metric_table([NOTHING], higher_is_better=True) if aimed else None)

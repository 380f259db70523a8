"""``coadapt.plan(...)``: from a request to the question, the evidence, the forecasts and the answer.

Its parameters have the names of the options of ``coadapt plan``. ``ask`` reads the request, the job file and the evidence
and makes a question with its options (``Asked``). ``answer`` makes forecasts, calls the planner, finds what would help
where no option satisfies the limits, and adds learning rates.

The options are GPU types and counts x batch sizes, packed on nodes, within GPU memory. A batch that does not fit into the
memory of its GPUs is split by gradient accumulation.

``from_pool`` reads past jobs as samples (``coadapt plan --pool FILE``). Jobs are compared by name, command, data size and
batch size (``prediction.remaining.past_jobs``). Their step times become pass times, data size / batch x step; their noise
scale says how passes become work at larger batches; their total work gives the number of epochs, where the user gives
none. The pool contains no metrics.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from coadapt.errors import InputError, UnknownNameError, suggestion
from coadapt.model import Fact, JobSpec
from coadapt.model.hardware import find_gpu
from coadapt.planning.answer import Planned, efficiencies, rate_factor
from coadapt.planning.forecasts import AccumulatedForecast, SampleForecast, ScatteredForecast
from coadapt.planning.next_run import worth_running
from coadapt.planning.option_choice import relaxed
from coadapt.planning.option_outlook import Forecast
from coadapt.planning.past_runs import read_samples
from coadapt.planning.planners.exact import ExactPlanner
from coadapt.planning.problem import Evidence, Option, Plan, Question, largest_batch
from coadapt.planning.request import Request, metric_of, question_of, target_of
from coadapt.plugins import PLANNERS
from coadapt.prediction.remaining.past_jobs import NOISE_SHARES, Match, Prior, prior_for
from coadapt.prediction.samples.passes import ByNoise, Work
from coadapt.prediction.samples.sample_table import EpochSample, epoch_table
from coadapt.spec.gpus import GpuRange, parse_gpus, parse_range
from coadapt.store.pool_file import read_pool
from coadapt.units import parse_bytes

_KNOWN = tuple(field.name for field in fields(Request))
#: Factor beyond the allowed GPUs in which more GPUs are tried as a way to meet the limits.
_MORE = 4
#: Batch sizes between the smallest and the largest, where only these are given.
MOST_BATCHES = 50
#: Examples of one GPU come in multiples of this, where they are many: kernels are fastest then.
_EVEN = 8
#: Times the largest batch of one GPU that ran, up to which others are offered where memory is not known.
_FURTHER = 2.0


class Learned(NamedTuple):
    """Evidence from past jobs."""

    evidence: Evidence
    work: Work | None
    epochs: float | None
    note: str


def from_pool(request: Request, spec: Mapping[str, Any], known: Evidence) -> Learned:
    """Add the past jobs in the request's ``pool`` that are like this one to the evidence ``known``."""
    assert request.pool is not None
    if not spec.get("name"):
        raise InputError("--pool compares jobs by name: give a job file that has one (name: ...)")
    initial = spec.get("batch", {}).get("initial")
    job = JobSpec(
        name=str(spec["name"]),
        user=str(spec.get("user") or ""),
        command=tuple(shlex.split(str(spec.get("run") or ""))),
        requested_batch=initial,
        data_size=spec.get("data_size"),
    )
    prior = prior_for(read_pool(request.pool), job)
    if not prior.table.rows:
        raise InputError(
            f"pool {request.pool} has no past job similar to {job.name!r} with measured steps; see 'coadapt pool'"
        )
    best = prior.matches[0]
    size = job.data_size or best.job.data_size
    if not size:
        raise InputError("the number of examples in one pass is unknown: give data_size in the job file")
    initial = initial or (None if best.job.batch is None else round(best.job.batch))
    epochs = float(np.average(prior.past, weights=prior.likeness)) / size if prior.past else None
    return Learned(
        evidence=_joined(known, prior, float(size), request.gpus_per_node),
        work=_work(prior, initial, epochs) if known.metrics is None else None,
        epochs=epochs,
        note=_note(prior, best, epochs, request),
    )


def _joined(known: Evidence, prior: Prior, size: float, gpus_per_node: int) -> Evidence:
    samples = {name: list(table.samples) for name, table in known.epochs.items()}
    for row in prior.table.rows:
        batch = row.replicas * row.atomic_batch
        sample = EpochSample(
            batch=batch, workers=row.replicas, nodes=row.nodes, epoch_s=size / batch * row.step_s
        )
        samples.setdefault(row.gpu_type, []).append(sample)
    tables = {
        name: epoch_table(rows, gpus_per_node=gpus_per_node, gpu_type=name)
        for name, rows in sorted(samples.items())
    }
    return Evidence(epochs=tables, metrics=known.metrics, memory=known.memory)


def _work(prior: Prior, initial: int | None, epochs: float | None) -> Work | None:
    if not prior.noise or initial is None or not epochs:
        return None
    shares = [max(share, 1e-3) * epochs for share in NOISE_SHARES]
    return ByNoise(
        initial=float(initial), epochs=tuple(shares), phi=tuple(each.value for each in prior.noise)
    )


def _note(prior: Prior, best: Match, epochs: float | None, request: Request) -> str:
    said = f"based on {len(prior.matches)} similar past jobs ({best.job.name}: {best.why})"
    if epochs is None or request.epochs is not None:
        return said
    return said + f"; they did the work of {epochs:.3g} epochs"


def plan(spec: str | None = None, *, evidence: Evidence | None = None, **given: Any) -> Planned:
    """Find the cheapest configuration for a deadline, a budget and a metric.

    ``print(planned)`` shows question, answer and table; ``planned.feasible`` is False if no option satisfies the limits.

    Args:
        spec: Path of the job file; None: none.
        evidence: Past runs as objects, in place of files.
        **given: Fields of ``planning.request.Request``: ``samples``, ``pool``, ``deadline``, ``target``, ``budget``,
            ``gpus``, ``batch``, ``prices``, ``confidence``, ``objective``, ...
    """
    for name in given:
        if name not in _KNOWN:
            raise InputError(f"plan() has no parameter {name!r}; {suggestion(name, _KNOWN)}")
    request = Request(spec=spec, **given)
    if evidence is None and request.samples is None and request.pool is None:
        raise InputError("no source of times: give samples (past runs), pool (past jobs), or evidence")
    return plan_for(request, evidence)


def plan_for(request: Request, evidence: Evidence | None = None) -> Planned:
    """Plan for a request; ``evidence``: past runs as objects, in place of files."""
    return answer(request, ask(request, evidence))


@dataclass(frozen=True)
class Asked:
    """A question ready to be answered."""

    question: Question
    options: Sequence[Option]
    more: Sequence[Option]
    spec: Mapping[str, Any]
    notes: tuple[str, ...]
    evidence: Evidence
    projected: frozenset[str] = frozenset()
    #: How passes become work, where that is known better than the metrics tell it.
    work: Work | None = None
    #: By how much the metric of runs alike differs, where that was measured.
    scatter: float = 0.0


def ask(request: Request, evidence: Evidence | None = None, work: Work | None = None) -> Asked:
    """Read and check the request, the job file and the samples, and make a question with its options.

    ``evidence`` replaces the files of samples and past jobs; ``work`` says how passes become work, where that is known.
    """
    spec = request.read_spec()
    target = target_of(request, spec)
    ranges, notes = gpu_ranges(request, spec), []
    if evidence is None:
        evidence = Evidence()
        if request.samples:
            name, higher = metric_of(request, target)
            evidence = read_samples(
                request.samples,
                metric=name,
                higher_is_better=higher,
                gpus_per_node=request.gpus_per_node,
                gpu_type=ranges[0].gpu_type,
            )
        if request.pool:
            learned = from_pool(request, spec, evidence)
            evidence, work = learned.evidence, learned.work
            notes.append(learned.note)
            if learned.epochs is not None and request.epochs is None and "epochs" not in spec:
                spec = {**spec, "epochs": learned.epochs}
    ranges = [named(each, evidence) for each in ranges]
    projected = projected_types(ranges, evidence)
    notes += [
        f"{name}* has no samples: its times are projected from GPU datasheets, with wide intervals"
        for name in projected
    ]
    options, more = options_for(request, spec, ranges, evidence)
    question, more_notes = _known(
        question_of(request, spec, target, [each.gpu_type for each in ranges]), evidence
    )
    return Asked(
        question,
        options,
        more,
        spec,
        (*notes, *more_notes, *_assumed(request, question)),
        evidence,
        frozenset(projected),
        work,
    )


def _known(question: Question, evidence: Evidence) -> tuple[Question, list[str]]:
    """Without anything known of the metric a target cannot be planned for; runs that stopped within a pass need not make whole ones."""
    if evidence.metrics is not None and evidence.metrics.samples:
        whole = all(float(sample.epochs).is_integer() for sample in evidence.metrics.samples)
        return replace(question, whole_passes=whole), []
    if question.objective == "metric":
        raise InputError("maximising the metric needs past runs with the metric (--samples)")
    if question.target is None:
        return question, []
    if question.epochs is None:
        raise InputError(
            "the metric is unknown, so a target cannot be planned for: give past runs with the metric "
            "(--samples), or the number of epochs (--epochs) for time and cost alone"
        )
    return replace(question, target=None), [
        "the metric is unknown: the plan covers time and cost of the given epochs; past runs (--samples) would add the metric"
    ]


def _assumed(request: Request, question: Question) -> list[str]:
    notes = []
    silent = [name for name in ("setup", "validation", "checkpoint") if getattr(request, f"{name}_s") is None]
    if silent:
        notes.append(
            f"not given, counted as 0 s: {', '.join(silent)} (set them with --setup-time, --validation-time and --checkpoint-time)"
        )
    if not question.prices:
        notes.append("no prices given: costs are in GPU-hours (for money, give --prices FILE)")
    return notes


def forecast_of(asked: Asked) -> Forecast:
    """The default forecast, from all evidence."""
    measured = {
        (name, sample.batch, sample.workers)
        for name, table in asked.evidence.epochs.items()
        for sample in table.samples
    }
    plain: Forecast = SampleForecast(asked.evidence, asked.work)
    if asked.scatter > 0:
        plain = ScatteredForecast(plain, asked.scatter, higher_is_better=asked.question.higher_is_better)
    return AccumulatedForecast(plain, measured)


def answer(request: Request, asked: Asked, run: str | None = None) -> Planned:
    """Plan for a question. ``run``: the training command, where the job file has none."""
    PLANNERS.load(request.planner)
    rule = request.lr_rule or str(asked.spec.get("lr_rule") or "linear")
    rate_factor(rule, 1.0)
    forecast = forecast_of(asked)

    def plan_for(question: Question, options: Sequence[Option]) -> Plan:
        ours = request.planner == ExactPlanner.name
        planner = ExactPlanner(forecast) if ours else PLANNERS.make(request.planner)
        return planner.plan(question, options, asked.evidence, np.random.default_rng(request.seed))

    plan = plan_for(asked.question, asked.options)
    if plan.chosen is None:
        plan = relaxed(plan, plan_for, _surely(asked.evidence), asked.more)
    if request.planner == ExactPlanner.name:
        plan = replace(plan, short_run=worth_running(plan, forecast))
    notes = list(asked.notes)
    if plan.chosen is None and "target" in plan.binding and (seen := _best_seen(asked.evidence)) is not None:
        notes.append(f"the best {asked.question.metric} in the past runs is {seen:.4g}")
    if plan.row.total_s.low == plan.row.total_s.upper:
        notes.append(f"{request.planner} does not model uncertainty: its chances are 0% or 100%")
    lr = request.lr if request.lr is not None else asked.spec.get("lr")
    batches = {option.batch for option in asked.options}
    return Planned(
        plan=plan,
        notes=tuple(notes),
        run=asked.spec.get("run") or run,
        spec_file=request.spec,
        lr=None if lr is None else float(lr),
        lr_rule=rule,
        initial_batch=min(batches),
        efficiency=efficiencies(forecast, batches, asked.question.epochs or 10.0)
        if rule == "adascale"
        else {},
        projected=asked.projected,
        asked_at=request.now,
    )


def _best_seen(evidence: Evidence) -> float | None:
    if evidence.metrics is None or not evidence.metrics.samples:
        return None
    seen = [sample.metric for sample in evidence.metrics.samples]
    return max(seen) if evidence.metrics.higher_is_better else min(seen)


def _surely(evidence: Evidence) -> float | None:
    """A metric that any option reaches: the worst that was ever seen."""
    if evidence.metrics is None or not evidence.metrics.samples:
        return None
    seen = [sample.metric for sample in evidence.metrics.samples]
    return min(seen) if evidence.metrics.higher_is_better else max(seen)


def gpu_ranges(request: Request, spec: Mapping[str, Any]) -> list[GpuRange]:
    """GPU types and counts of the request, else of the job file."""
    found = request.gpus or spec.get("resources", {}).get("accelerators") or "gpu:1..8"
    return parse_gpus(found, nodes=spec.get("num_nodes", 1))


def named(given: GpuRange, evidence: Evidence) -> GpuRange:
    """Give GPUs without a type the type of the samples, if these have only one."""
    if given.gpu_type == "gpu" and len(evidence.epochs) == 1:
        return given._replace(gpu_type=next(iter(evidence.epochs)))
    return given


def projected_types(ranges: list[GpuRange], evidence: Evidence) -> list[str]:
    """GPU types without a sample, projected from their datasheets; raises an InputError for an unknown type."""
    found = []
    for each in ranges:
        if each.gpu_type in evidence.epochs or (each.gpu_type in ("gpu", "cpu") and not evidence.epochs):
            continue
        find_gpu(each.gpu_type)
        if evidence.epochs:
            found.append(each.gpu_type)
    return found


def options_for(
    request: Request, spec: Mapping[str, Any], ranges: list[GpuRange], evidence: Evidence
) -> tuple[list[Option], list[Option]]:
    """Options within the GPUs offered, and further options that would need more GPUs.

    Args:
        request: What the user asked for.
        spec: The job file.
        ranges: GPU types and counts offered.
        evidence: Past measurements; their batch sizes become options, their memory limits the batch of a GPU.
    """
    batch = spec.get("batch", {})
    low, high, known = _batch_range(request, batch, evidence)
    sizes = batch_sizes(low, high, known)
    limits = {each.gpu_type: _per_gpu(request, batch, each.gpu_type, evidence) for each in ranges}
    full = [name for name, limit in limits.items() if limit == 0]
    if len(full) == len(limits):
        raise InputError(
            f"a single example does not fit into the memory of one GPU ({', '.join(full)}); see --gpu-memory"
        )

    size = spec.get("gpus_per_replica", 1)

    def offer(each: GpuRange, least: int, most: int) -> Offer:
        return Offer(
            gpu_type=each.gpu_type,
            replicas=tuple(range(-(-least // size), most // size + 1)),
            gpus_per_node=request.gpus_per_node,
            per_gpu_max=limits[each.gpu_type],
            gpus_per_replica=size,
            ran=_ran(evidence, each.gpu_type),
            far_beyond=None if limits[each.gpu_type] else _far_beyond(evidence),
        )

    options = options_of([offer(each, each.low, each.high) for each in ranges], sizes)
    if not options:
        raise InputError(f"no batch size of {low}..{high} can be split over {ranges[0].low} or more GPUs")
    return options, options_of([offer(each, each.high + 1, each.high * _MORE) for each in ranges], sizes)


def _batch_range(
    request: Request, batch: Mapping[str, Any], evidence: Evidence
) -> tuple[int, int, list[int]]:
    known = sorted(
        {s.batch for table in evidence.epochs.values() for s in table.samples}
        | {s.batch for s in (evidence.metrics.samples if evidence.metrics else ())}
    )
    if request.batch:
        return (*parse_range("batch sizes", request.batch), known)
    if "initial" in batch:
        return batch["initial"], batch.get("max", batch["initial"]), known
    if known:
        return known[0], known[-1], known
    raise InputError("no batch sizes: give --batch, for example 32..4096, or past runs (--samples)")


def _per_gpu(request: Request, batch: Mapping[str, Any], gpu_type: str, evidence: Evidence) -> int | None:
    """The largest batch that one GPU of a type holds: as given, and as its memory allows."""
    limit = request.per_gpu_max
    if limit is None and "per_gpu" in batch:
        _, limit = parse_range("batch.per_gpu", batch["per_gpu"])
    memory = _memory(request, gpu_type)
    fits = None if memory is None else largest_batch(evidence.memory, memory)
    found = [each for each in (limit, fits) if each is not None]
    return min(found) if found else None


def _far_beyond(evidence: Evidence) -> float | None:
    """A batch of one GPU that nothing which ran comes near."""
    shares = [sample.batch / sample.workers for table in evidence.epochs.values() for sample in table.samples]
    return _FURTHER * max(shares) if shares else None


def _ran(evidence: Evidence, gpu_type: str) -> dict[int, set[int]]:
    """Batch sizes that ran, by the number of workers."""
    table = evidence.epochs.get(gpu_type)
    found: dict[int, set[int]] = {}
    for sample in table.samples if table else ():
        found.setdefault(sample.workers, set()).add(sample.batch)
    return found


def _memory(request: Request, gpu_type: str) -> float | None:
    if request.memory is not None:
        return float(parse_bytes(request.memory))
    try:
        return find_gpu(gpu_type).memory_bytes
    except UnknownNameError:
        return None


class Offer(Fact, frozen=True, kw_only=True):
    """GPUs that may be used: ``replicas`` counts of one type."""

    gpu_type: str
    replicas: tuple[int, ...]
    gpus_per_node: int
    #: Largest batch that one GPU holds; None: any; 0: not even one example.
    per_gpu_max: int | None = None
    gpus_per_replica: int = 1
    #: Above this batch of one GPU nothing is offered while it is not known what one holds.
    far_beyond: float | None = None
    #: Batch sizes that ran, by the number of replicas.
    ran: Mapping[int, Collection[int]] = {}


def options_of(offers: Iterable[Offer], batches: Sequence[int]) -> list[Option]:
    """Every combination that can run: at least one example per replica, and the same number for all; uneven ones only where no other exists."""
    uneven: dict[Option, None] = {}
    even: dict[Option, None] = {}
    for offer in offers:
        if offer.per_gpu_max is not None and offer.per_gpu_max <= 0:
            continue
        for replicas in offer.replicas:
            nodes = -(-replicas * offer.gpus_per_replica // offer.gpus_per_node)
            for batch in batches:
                if batch < replicas:
                    continue
                local = batch / replicas
                most = local if offer.per_gpu_max is None else offer.per_gpu_max
                parts = max(math.ceil(local / most - 1e-9), 1)
                option = Option(
                    gpu_type=offer.gpu_type,
                    replicas=replicas,
                    nodes=nodes,
                    batch=batch,
                    accumulation=parts - 1,
                    gpus_per_replica=offer.gpus_per_replica,
                )
                uneven[option] = None
                # what ran is an option as it is
                if batch in offer.ran.get(replicas, ()):
                    even[option] = None
                    continue
                if offer.far_beyond is not None and local > offer.far_beyond:
                    continue
                largest = min(batches[-1], math.floor(most * replicas * parts))
                divided = _divided(batch, replicas * parts, batches[0], largest)
                if divided is not None:
                    even[replace(option, batch=divided)] = None
    return list(even or uneven)


def _divided(batch: int, parts: int, least: int, most: int) -> int | None:
    """The batch size near ``batch`` whose parts are equal, of 8 examples or a multiple where they are large enough; None: there is none."""
    if batch % (parts * _EVEN) == 0:
        return batch
    large = batch >= 2 * _EVEN * parts
    for unit in (parts * _EVEN, parts) if large else (parts,):
        times = min(round(batch / unit), most // unit)
        if times and times * unit >= least:
            return times * unit
    return None


def batch_sizes(low: int, high: int, known: Iterable[int] = ()) -> list[int]:
    """Batch sizes from ``low`` to ``high`` in steps of about a quarter of a doubling, and the measured ones."""
    if not 1 <= low <= high:
        raise InputError(f"batch sizes {low}..{high}: the first must be at least 1 and not above the second")
    steps = min(math.ceil(4 * math.log2(high / low)), MOST_BATCHES - 1) if high > low else 0
    sizes = {round(low * (high / low) ** (i / steps)) for i in range(steps + 1)} if steps else {low}
    return sorted(sizes | {size for size in known if low <= size <= high})

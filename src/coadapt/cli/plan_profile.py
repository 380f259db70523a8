"""``coadapt plan --profile``: short real runs, one after another, each where it tells most, until enough is known or a cap is met.

A run is the user's command with the placeholders filled in, also given as COADAPT_BATCH_SIZE, COADAPT_WORKERS, COADAPT_EPOCHS, COADAPT_LR and
COADAPT_SEED. What it reports (see ``profile_runs``) is kept in a file, if one is named, and taken up again. An option that fails is
left out with its last lines said; the first one failing is the command's fault, and the end.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from coadapt.cli import show
from coadapt.cli.plan_ask import Asked, Planned, Request, answer, ask, scaled_lr
from coadapt.cli.plan_files import read_spec
from coadapt.cli.plan_show import filled
from coadapt.cli.plan_words import parse_target
from coadapt.cli.profile_runs import Ran, RunFailedError, compiled, run_once
from coadapt.cli.progress import Bars
from coadapt.configure.forecasts import SampleForecast
from coadapt.configure.problem import HOUR_S, Evidence, Option
from coadapt.configure.profiling import next_run
from coadapt.errors import InputError
from coadapt.predict import work_epochs
from coadapt.predict.samples import EpochSample, MetricSample, epoch_table, metric_table


@dataclass(frozen=True)
class Caps:
    """How much may be spent on measuring."""

    runs: int = 12
    run_epochs: int = 1
    reference_epochs: int | None = None
    run_s: float = 600.0
    total_s: float | None = None
    cost: float | None = None


def profiled(request: Request, template: str, caps: Caps, kept: str | None) -> Planned:
    """Measures, then plans."""
    if "{batch_size}" not in template and "COADAPT_BATCH_SIZE" not in template:
        raise InputError(
            "the command takes no batch size: put {batch_size} where it belongs, for example 'python train.py --bs {batch_size}'"
        )
    past = ask(request).evidence if request.samples else None
    asked = ask(request, past or _empty(request))
    ran = _measured(request, asked, template, caps, Path(kept) if kept else None)
    evidence = _evidence(request, asked, ran)
    # a target that nothing is known about was dropped above; now something may be known
    asked = ask(request, evidence)
    planned = answer(request, asked, _forecast(evidence))
    spent = sum(each.seconds for each in ran)
    said = f"measured by {len(ran)} runs in {show.duration(spent)}"
    return replace(planned, run=planned.run or template, notes=(said, *planned.notes))


def _empty(request: Request) -> Evidence:
    """Nothing yet: enough to know the options; a target waits until the metric has been seen."""
    if request.batch is None and not _spec(request).get("batch"):
        raise InputError("which batch sizes? give --batch 32..4096, or batch in the specification")
    unseen = metric_table([_NOTHING], higher_is_better=True) if _metric_name(request) else None
    return Evidence(epochs={}, metrics=unseen)


#: Stands for a metric that the runs are still to tell.
_NOTHING = MetricSample(batch=1, epochs=1.0, metric=0.0)


def _measured(request: Request, asked: Asked, template: str, caps: Caps, kept: Path | None) -> list[Ran]:
    ran = _load(kept) if kept is not None else []
    options = list(asked.options)
    reference = min(range(len(options)), key=lambda i: (options[i].batch, options[i].gpus))
    initial = options[reference].batch
    began = time.monotonic()
    failed: set[int] = set()
    with Bars() as bars:
        if caps.reference_epochs and not any(each.reference for each in ran):
            option = options[reference]
            ran.append(
                _run(
                    request, template, option, initial, caps.reference_epochs, caps.run_s * 10, reference=True
                )
            )
            _save(kept, ran)
        while len([each for each in ran if not each.reference]) < caps.runs:
            spent = sum(each.seconds for each in ran)
            paid = sum(
                each.seconds * each.workers * asked.question.price(each.gpu_type) / HOUR_S for each in ran
            )
            if (caps.total_s is not None and time.monotonic() - began >= caps.total_s) or (
                caps.cost is not None and paid >= caps.cost
            ):
                show.note(f"stopped measuring at the cap: {show.duration(spent)}, cost {paid:,.2f}")
                break
            done = {i for i, option in enumerate(options) if any(_same(each, option) for each in ran)}
            evidence = _evidence(request, asked, ran) if ran else None
            forecast = _forecast(evidence) if evidence and evidence.epochs else None
            question = asked.question
            if question.target is not None and (evidence is None or evidence.metrics is None):
                question = msgspec.structs.replace(question, target=None, epochs=question.epochs or 1.0)
            i = next_run(question, options, forecast, done | failed)
            if i is None:
                break
            try:
                ran.append(_run(request, template, options[i], initial, caps.run_epochs, caps.run_s))
            except RunFailedError as error:
                if not ran:
                    raise
                failed.add(i)
                show.note(f"batch {options[i].batch} on {options[i].gpus}: {error}; left out")
                if len(failed) > caps.runs:
                    break
                continue
            _save(kept, ran)
            bars.update(
                f"batch {options[i].batch} on {options[i].gpus}: {ran[-1].pass_s:.3g} s a pass",
                len(ran),
                caps.runs,
            )
    return ran


def _forecast(evidence: Evidence) -> SampleForecast:
    """Short runs at other batch sizes tell how passes become work by their first metrics: far from the target, but all there is."""
    known = evidence.metrics
    return SampleForecast(evidence, work_epochs.fit(known) if known is not None and known.samples else None)


def _run(
    request: Request,
    template: str,
    option: Option,
    initial: int,
    epochs: int,
    limit_s: float,
    *,
    reference: bool = False,
) -> Ran:
    lr = (
        None
        if request.lr is None
        else scaled_lr(request.lr, request.lr_rule or "linear", option.batch / initial)
    )
    line = filled(
        template, batch=option.batch, workers=option.replicas, epochs=epochs, lr=lr, seed=request.seed
    )
    environment = {
        "COADAPT_BATCH_SIZE": str(option.batch),
        "COADAPT_WORKERS": str(option.replicas),
        "COADAPT_EPOCHS": str(epochs),
        "COADAPT_SEED": str(request.seed),
        **({"COADAPT_LR": f"{lr:g}"} if lr is not None else {}),
    }
    result = run_once(
        line, environment, metric=_metric_name(request), limit_s=limit_s, patterns=_patterns(request)
    )
    return Ran(
        gpu_type=option.gpu_type,
        workers=option.replicas,
        nodes=option.nodes,
        batch=option.batch,
        seconds=result.seconds,
        pass_s=result.pass_s,
        metrics=result.metrics,
        reference=reference,
    )


def _spec(request: Request) -> dict[str, Any]:
    return read_spec(request.spec) if request.spec else {}


def _patterns(request: Request) -> dict[str, re.Pattern[str]]:
    given = _spec(request).get("metrics") or {}
    if not isinstance(given, dict):
        raise InputError(f"{request.spec}: metrics must be a mapping of names to regular expressions")
    return compiled(given)


def _metric_name(request: Request) -> str | None:
    text = request.target or _spec(request).get("target")
    return parse_target(str(text)).name if text else "accuracy" if request.accuracy is not None else None


def _evidence(request: Request, asked: Asked, ran: list[Ran]) -> Evidence:
    """What runs have told, beside what was known before."""
    before = asked.evidence
    epochs: dict[str, list[EpochSample]] = {
        name: list(table.samples) for name, table in before.epochs.items()
    }
    for each in ran:
        sample = EpochSample(batch=each.batch, workers=each.workers, nodes=each.nodes, epoch_s=each.pass_s)
        epochs.setdefault(each.gpu_type, []).append(sample)
    metrics = [s for s in (before.metrics.samples if before.metrics else ()) if s != _NOTHING]
    for each in ran:
        # the first pass of a short run says nothing of the end; a whole one does
        metrics += [
            MetricSample(batch=each.batch, epochs=epoch, metric=value) for epoch, value in each.metrics
        ]
    tables = {name: epoch_table(found, gpus_per_node=request.gpus_per_node) for name, found in epochs.items()}
    higher = asked.question.higher_is_better
    return Evidence(
        epochs=tables, metrics=metric_table(metrics, higher_is_better=higher) if metrics else None
    )


def _same(ran: Ran, option: Option) -> bool:
    return not ran.reference and (ran.gpu_type, ran.workers, ran.batch) == (
        option.gpu_type,
        option.replicas,
        option.batch,
    )


def _load(kept: Path) -> list[Ran]:
    if not kept.exists():
        return []
    try:
        return msgspec.json.decode(kept.read_bytes(), type=list[Ran])
    except (msgspec.MsgspecError, OSError) as error:
        raise InputError(f"--resume {kept}: not what runs have told ({error}); name another file") from None


def _save(kept: Path | None, ran: list[Ran]) -> None:
    if kept is None:
        return
    part = kept.with_name(f".{kept.name}.part")
    try:
        part.write_bytes(msgspec.json.encode(ran))
        part.replace(kept)
    except OSError as error:
        raise InputError(f"--resume {kept}: cannot write: {error.strerror}") from None

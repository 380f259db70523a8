"""``coadapt predict``: predict step time, training time and memory of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import SECONDS, Finite, json_option, python_option

if TYPE_CHECKING:
    from coadapt.model import Interval
    from coadapt.planning import ModelPrediction

_SYNC = ("ring", "tree", "hierarchical", "central", "parameter-server")
_LEARNERS = ("trees", "network")
#: Upper limits that catch typing errors.
_MOST_BATCH, _MOST_GPUS, _MOST_EXAMPLES = 10**9, 10**6, 10**15


@click.command("predict")
@click.argument("target", metavar="FILE:FUNCTION")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="SHAPE",
    help="Shape of one example: 3x224x224, 128:int.",
)
@click.option("--batch", type=click.IntRange(1, _MOST_BATCH), required=True, help="Batch size per replica.")
@click.option("--gpu", required=True, help="GPU type: v100, a100, t4, ... or cpu.")
@click.option(
    "--replicas", type=click.IntRange(1, _MOST_GPUS), default=1, help="Number of replicas, each on one GPU."
)
@click.option("--data-size", type=click.IntRange(1, _MOST_EXAMPLES), help="Number of examples in one epoch.")
@click.option("--epochs", "passes", type=Finite(most=1e9, above=0), help="Number of passes over the data.")
@click.option("--optimizer", default="sgd", help="Optimizer; none: forward passes only.")
@click.option("--precision", default="fp32", help="Precision: fp32, tf32, bf16 or fp16.")
@click.option("--sync", type=click.Choice(_SYNC), default="ring", help="How gradients are synchronised.")
@click.option(
    "--gpus-per-node",
    "gpus_per_node",
    type=click.IntRange(1, _MOST_GPUS),
    default=8,
    help="Number of GPUs of a node.",
)
@click.option(
    "--network",
    metavar="GBIT",
    type=Finite(most=1e6, above=0),
    help="Bandwidth between nodes in Gbit/s. Default: 25.",
)
@click.option(
    "--overlap",
    type=Finite(0, 1),
    default=0.7,
    help="Fraction of synchronisation hidden by the backward pass.",
)
@click.option(
    "--layer-times", "measured", metavar="FILE", help="Layer times measured by 'coadapt profile layers'."
)
@click.option(
    "--layer-model",
    "learner",
    type=click.Choice(_LEARNERS),
    default="trees",
    help="Learned model of dense layers and convolutions.",
)
@python_option
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=SECONDS,
    default=300.0,
    help="Time limit for building and tracing the model.",
)
@json_option
def command(target: str, as_json: bool, **given: Any) -> None:
    """Predict step time, epoch time, memory and communication of the model that FUNCTION returns.

    \b
    coadapt predict train.py:build_model --input 3x224x224 --batch 64 --gpu v100 --replicas 4 \\
        --data-size 1281167 --epochs 90

    The predicted total is recorded. Report the actual time by 'coadapt calibration --actual ID DURATION'.
    """
    from coadapt import predict, progress
    from coadapt.progress import Pulse

    with Pulse("tracing the model"):
        found = predict(target, **given)
    if as_json:
        terminal.say_json(found.to_dict())
        return
    for text in found.notes:
        progress.note(text)
    _say(found)
    if found.prediction_id is not None:
        terminal.say()
        terminal.say(
            f"After the run, report the actual time: coadapt calibration --actual {found.prediction_id} DURATION"
        )


def _say(found: ModelPrediction) -> None:
    from coadapt.units import format_duration

    bound, step, gpu = found.lower_bound, found.step, found.gpu
    terminal.say(
        f"{len(found.layers)} layers, {_parameters(found.parameters)} parameters, "
        f"batch size {found.batch} per replica, {found.replicas} x {gpu.name}",
        bold=True,
    )
    pairs = {"step": _range(step.step_s, _milliseconds, bound)}
    if found.pass_s is not None:
        pairs[f"epoch ({found.steps_per_pass:,} steps)"] = _range(found.pass_s, format_duration, bound)
    if found.total_s is not None:
        pairs[f"total ({found.passes:g} epochs)"] = _range(found.total_s, format_duration, bound)
    if found.replicas > 1:
        pairs["communication"] = (
            f"{step.communication_share:.1%} of a step ({_milliseconds(step.sync_s.value)} without overlap)"
        )
    held = found.memory
    pairs["peak memory"] = f"{_range(held.peak, _gigabytes, bound)} of {_gigabytes(gpu.memory_bytes)}"
    if gpu.name != "cpu" and not bound:
        fits = "none" if held.largest_batch is None else f"{held.largest_batch:,} examples"
        pairs["largest batch that fits"] = fits
    for line in terminal.facts(pairs):
        terminal.say(line)
    terminal.say()
    all_s = sum(step.by_kind.values())
    rows = [[kind, _milliseconds(s), f"{s / all_s:.1%}"] for kind, s in step.by_kind.items()]
    terminal.say_table(["kind", "time", "share"], rows)


def _parameters(count: float) -> str:
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= unit:
            return f"{count / unit:,.3g}{name}"
    return f"{count:,.0f}"


def _range(estimate: Interval, form: Any, bound: bool) -> str:
    if bound:
        return f"at least {form(estimate.low)}"
    return f"{form(estimate.value)} ({form(estimate.low)} to {form(estimate.upper)})"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _gigabytes(size: float) -> str:
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"

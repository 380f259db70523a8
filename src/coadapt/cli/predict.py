"""``coadapt predict``: how long a model will train, before anything has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli.parameter_types import SECONDS, Finite

if TYPE_CHECKING:
    from coadapt.model import Interval
    from coadapt.planning import ModelPrediction

_SYNC = ("ring", "tree", "hierarchical", "central", "parameter-server")
_LEARNERS = ("trees", "network")
#: Beyond these a number is a slip of the pen.
_MOST_BATCH, _MOST_GPUS, _MOST_EXAMPLES = 10**9, 10**6, 10**15


@click.command("predict")
@click.argument("target", metavar="FILE:FUNCTION")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="SHAPE",
    help="One example: 3x224x224, 128:int.",
)
@click.option(
    "--batch", type=click.IntRange(1, _MOST_BATCH), required=True, help="Examples per replica and step."
)
@click.option("--gpu", required=True, help="v100, a100, t4, ... or cpu.")
@click.option(
    "--replicas", type=click.IntRange(1, _MOST_GPUS), default=1, show_default=True, help="GPUs, one each."
)
@click.option("--data-size", type=click.IntRange(1, _MOST_EXAMPLES), help="Examples in one pass.")
@click.option(
    "--passes",
    "--epochs",
    "passes",
    type=Finite(most=1e9, above=0),
    help="Passes over the data (an epoch at the reference batch size is one).",
)
@click.option("--optimizer", default="sgd", show_default=True, help="none: forward only.")
@click.option("--precision", default="fp32", show_default=True, help="fp32, tf32, bf16 or fp16.")
@click.option(
    "--sync", type=click.Choice(_SYNC), default="ring", show_default=True, help="How gradients travel."
)
@click.option(
    "--per-node",
    "gpus_per_node",
    type=click.IntRange(1, _MOST_GPUS),
    default=8,
    show_default=True,
    help="GPUs of a node.",
)
@click.option(
    "--network", metavar="GBIT", type=Finite(most=1e6, above=0), help="Between nodes, Gbit/s; default 25."
)
@click.option("--overlap", type=Finite(0, 1), default=0.7, show_default=True, help="Of sync and backward.")
@click.option(
    "--measured", metavar="FILE", help="Layers measured on this device by 'coadapt profile layers'."
)
@click.option(
    "--layers",
    "learner",
    type=click.Choice(_LEARNERS),
    default="trees",
    show_default=True,
    help="What was learned of dense layers and convolutions.",
)
@click.option("--python", metavar="PATH", help="Interpreter of the training code; default: this one.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="How long the model may take to be built and traced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else.")
def command(target: str, as_json: bool, **given: Any) -> None:
    """Step time, pass time, memory and communication of the model that FUNCTION builds.

    \b
    coadapt predict train.py:build_model --input 3x224x224 --batch 64 --gpu v100 --replicas 4 \\
        --data-size 1281167 --epochs 90

    A predicted total is kept; tell what it came to by 'coadapt calibration --actual ID DURATION'.
    """
    from coadapt import predict, progress
    from coadapt.cli import terminal
    from coadapt.progress import Pulse

    with Pulse("tracing the model"):
        found = predict(target, **given)
    if as_json:
        terminal.say_rows([found.to_dict()], as_json=True, single=True)
        return
    for text in found.notes:
        progress.note(text)
    _say(found)
    if found.prediction_id is not None:
        terminal.say()
        terminal.say(
            f"When it has run, say how long it took: coadapt calibration --actual {found.prediction_id} DURATION"
        )


def _say(found: ModelPrediction) -> None:
    from coadapt.cli import terminal
    from coadapt.units import format_duration

    bound, step, gpu = found.lower_bound, found.step, found.gpu
    terminal.say(
        f"{len(found.layers)} layers, {found.parameters / 1e6:,.1f} M parameters, "
        f"batch {found.batch} on each of {found.replicas} {gpu.name}",
        bold=True,
    )
    pairs = {"step": _range(step.step_s, _milliseconds, bound)}
    if found.pass_s is not None:
        pairs[f"pass ({found.steps_per_pass:,} steps)"] = _range(found.pass_s, format_duration, bound)
    if found.total_s is not None:
        pairs[f"total ({found.passes:g} passes)"] = _range(found.total_s, format_duration, bound)
    if found.replicas > 1:
        pairs["communication"] = (
            f"{step.communication_share:.1%} of a step ({_milliseconds(step.sync_s.value)} before overlap)"
        )
    held = found.memory
    pairs["peak memory"] = f"{_range(held.peak, _gigabytes, bound)} of {_gigabytes(gpu.memory_bytes)}"
    if gpu.name != "cpu" and not bound:
        fits = "nothing fits" if held.largest_batch is None else f"{held.largest_batch:,} examples"
        pairs["largest batch that fits"] = fits
    for line in terminal.facts(pairs):
        terminal.say(line)
    terminal.say()
    all_s = sum(step.by_kind.values())
    rows = [[kind, _milliseconds(s), f"{s / all_s:.1%}"] for kind, s in step.by_kind.items()]
    terminal.say_table(["kind", "time", "share"], rows)


def _range(estimate: Interval, form: Any, bound: bool) -> str:
    if bound:
        return f"at least {form(estimate.low)}"
    return f"{form(estimate.value)} ({form(estimate.low)} to {form(estimate.upper)})"


def _milliseconds(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 10
        else f"{1e3 * seconds:.3g} ms"
        if seconds < 1
        else f"{seconds:.2f} s"
    )


def _gigabytes(size: float) -> str:
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"

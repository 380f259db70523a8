"""``coadapt predict``: how long a model will train, before anything has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli.finite import SECONDS, Finite
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.predict import Estimate
    from coadapt.predict.communication import Network
    from coadapt.predict.hardware import Gpu
    from coadapt.predict.layers import Layer, Learner, Memory, StepPrediction
    from coadapt.wire.trace import Traced

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
    "--per-node", type=click.IntRange(1, _MOST_GPUS), default=8, show_default=True, help="GPUs of a node."
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
def command(
    target: str,
    inputs: tuple[str, ...],
    batch: int,
    gpu: str,
    replicas: int,
    data_size: int | None,
    passes: float | None,
    optimizer: str,
    precision: str,
    sync: str,
    per_node: int,
    network: float | None,
    overlap: float,
    measured: str | None,
    learner: Learner,
    python: str | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Step time, pass time, memory and communication of the model that FUNCTION builds.

    \b
    coadapt predict train.py:build_model --input 3x224x224 --batch 64 --gpu v100 --replicas 4 \\
        --data-size 1281167 --epochs 90

    A predicted total is kept; tell what it came to by 'coadapt calibration --actual ID DURATION'.
    """
    from coadapt.cli import show
    from coadapt.cli.measured_layers import notes, read_measured
    from coadapt.cli.progress import Pulse
    from coadapt.cli.torch_tools import one_answer
    from coadapt.predict.layers import memory, predict_step
    from coadapt.predict.layers.layer import check_optimizer, check_precision
    from coadapt.wire.shapes import check_batch
    from coadapt.wire.trace import Traced

    # everything that can be wrong without looking at the model, first
    device = _device(gpu)
    check_optimizer(optimizer)
    check_precision(precision)
    if passes is not None and data_size is None:
        raise InputError("--passes needs --data-size, the number of examples in one pass")
    known = read_measured(measured) if measured else None
    check_batch(inputs, batch)
    shapes = [part for text in inputs for part in ("--input", text)]
    # a file's name may begin like an option
    named = f"./{target}" if target.startswith("-") else target
    with Pulse("tracing the model"):
        traced = one_answer(
            "trace", [named, *shapes, "--batch", str(batch)], python=python, timeout_s=timeout_s
        )
    assert isinstance(traced, Traced)
    layers = layers_of(traced, batch)
    said = notes(known, layers, device) if known else []
    step = predict_step(
        layers,
        traced.parameters,
        device,
        _network(device, network, per_node),
        replicas=replicas,
        optimizer=optimizer,
        precision=precision,
        sync=sync,
        overlap=overlap,
        measured=known.layers if known else (),
        learner=learner,
    )
    held = memory(
        layers, traced.parameters, traced.input_bytes, batch, device, optimizer=optimizer, precision=precision
    )
    steps = None if data_size is None else -(-data_size // (batch * replicas))
    answer = _plain(traced, layers, device, step, held, batch, replicas, steps, passes)
    answer |= {"layers_by": learner, "notes": [*said, *answer["notes"]]}
    answer["prediction_id"] = _keep(answer, target)
    if as_json:
        show.say_rows([answer], as_json=True, single=True)
        return
    for text in answer["notes"]:
        show.note(text)
    _say(answer, traced, device, step, held, batch, replicas, steps, passes)
    if answer["prediction_id"] is not None:
        show.say()
        show.say(
            f"When it has run, say how long it took: coadapt calibration --actual {answer['prediction_id']} DURATION"
        )


def _keep(answer: dict[str, Any], target: str) -> int | None:
    """Keeps the predicted total, to be compared with what happens; a bound alone predicts nothing."""
    from coadapt.cli.kept import Kept
    from coadapt.predict import Estimate

    if answer["total_s"] is None or answer["lower_bound"]:
        return None
    # how most layers were predicted
    method = max(answer["methods"], key=lambda name: (answer["methods"][name], name), default="")
    subject = f"{target} on {answer['replicas']} {answer['gpu']}, batch {answer['batch_per_replica']}"
    return Kept("predict").keep(subject, method, Estimate(**answer["total_s"]), done=0.0)


def _device(name: str) -> Gpu:
    from coadapt.errors import UnknownNameError
    from coadapt.predict.hardware import find_gpu

    try:
        return find_gpu(name)
    except UnknownNameError as error:
        plain = str(UnknownNameError(error.kind, error.name, error.known))
        raise InputError(
            f"{plain}{'' if plain.endswith('?') else ';'} a device that is not listed: name the nearest one, and give "
            "--measured FILE, written by 'coadapt profile layers -o FILE' on the device itself"
        ) from None


def layers_of(traced: Traced, batch: int) -> list[Layer]:
    """The traced layers; those never reached as one dense layer that uses every parameter once: a lower bound."""
    import msgspec

    from coadapt.predict.layers import Layer

    layers = [msgspec.json.decode(raw, type=Layer) for raw in traced.layers]
    if traced.unreached_parameters:
        count = traced.unreached_parameters
        flops = 2.0 * batch * count
        layers.append(
            Layer(
                name="(not reached)",
                kind="other",
                batch=batch,
                flops=flops,
                input_bytes=0.0,
                output_bytes=0.0,
                parameters=count,
            )
        )
    return layers


def _network(gpu: Gpu, gbit_s: float | None, per_node: int) -> Network:
    from coadapt.predict.communication import Link, Network

    inside = Link(bytes_s=gpu.link_bytes_s, latency_s=1e-5)
    between = Link(bytes_s=(gbit_s or 25.0) * 1e9 / 8, latency_s=3e-5)
    return Network(inside=inside, between=between, per_node=per_node)


def _plain(
    traced: Traced,
    layers: list[Layer],
    gpu: Gpu,
    step: StepPrediction,
    held: Memory,
    batch: int,
    replicas: int,
    steps: int | None,
    passes: float | None,
) -> dict[str, Any]:
    from msgspec.structs import asdict as plain

    from coadapt.predict.layers import times

    notes = list(traced.notes)
    if gpu.memory_bytes and held.peak.low > gpu.memory_bytes:
        notes.append(
            f"batch {batch} does not fit the memory of {gpu.name}: times are what a larger one would take"
        )
    elif gpu.memory_bytes and held.peak.value > gpu.memory_bytes:
        notes.append(f"batch {batch} probably does not fit the memory of {gpu.name}")
    if traced.failed_layer is not None:
        notes.append(
            f"layer {traced.failed_layer!r} cannot be traced ({traced.reason}); figures are lower bounds: "
            "the layers before it, and every later parameter used once"
        )
    if "analytic" in step.methods or "projected" in step.methods:
        notes.append(
            f"no layer of {gpu.name} was measured for {_unmeasured(step)}: intervals are wide; "
            "'coadapt profile layers' on such a device narrows them (--measured)"
        )
    notes += [f"{gpu.name}: not sure of {text}" for text in gpu.unsure]
    return {
        "gpu": gpu.name,
        "replicas": replicas,
        "batch_per_replica": batch,
        "layers": len(layers),
        "parameters": traced.parameters,
        "forward_flops": sum(layer.flops for layer in layers),
        "lower_bound": traced.failed_layer is not None,
        "step_s": plain(step.step_s),
        "compute_s": plain(step.compute_s),
        "sync_s": plain(step.sync_s),
        "communication_share": step.communication_share,
        "steps_per_pass": steps,
        "pass_s": None if steps is None else plain(times(step.step_s, steps)),
        "total_s": None if steps is None or passes is None else plain(times(step.step_s, steps * passes)),
        "peak_memory_bytes": plain(held.peak),
        "memory_bytes": gpu.memory_bytes,
        "largest_batch": None if traced.failed_layer is not None else held.largest_batch,
        "by_kind_s": step.by_kind,
        "methods": step.methods,
        "notes": notes,
    }


def _unmeasured(step: StepPrediction) -> str:
    count = step.methods.get("analytic", 0) + step.methods.get("projected", 0)
    return f"{count} of {sum(step.methods.values())} layers"


def _say(
    answer: dict[str, Any],
    traced: Traced,
    gpu: Gpu,
    step: StepPrediction,
    held: Memory,
    batch: int,
    replicas: int,
    steps: int | None,
    passes: float | None,
) -> None:
    from coadapt.cli import show
    from coadapt.predict.layers import times
    from coadapt.units import format_duration

    bound = bool(answer["lower_bound"])
    show.say(
        f"{answer['layers']} layers, {traced.parameters / 1e6:,.1f} M parameters, batch {batch} on each of {replicas} {gpu.name}",
        bold=True,
    )
    pairs = {"step": _range(step.step_s, _milliseconds, bound)}
    if steps is not None:
        pairs[f"pass ({steps:,} steps)"] = _range(times(step.step_s, steps), format_duration, bound)
        if passes is not None:
            pairs[f"total ({passes:g} passes)"] = _range(
                times(step.step_s, steps * passes), format_duration, bound
            )
    if replicas > 1:
        pairs["communication"] = (
            f"{step.communication_share:.1%} of a step ({_milliseconds(step.sync_s.value)} before overlap)"
        )
    pairs["peak memory"] = f"{_range(held.peak, _gigabytes, bound)} of {_gigabytes(gpu.memory_bytes)}"
    if gpu.name != "cpu" and not bound:
        fits = "nothing fits" if held.largest_batch is None else f"{held.largest_batch:,} examples"
        pairs["largest batch that fits"] = fits
    for line in show.facts(pairs):
        show.say(line)
    show.say()
    all_s = sum(step.by_kind.values())
    rows = [[kind, _milliseconds(s), f"{s / all_s:.1%}"] for kind, s in step.by_kind.items()]
    show.say_table(["kind", "time", "share"], rows)


def _range(estimate: Estimate, form: Any, bound: bool) -> str:
    if bound:
        return f"at least {form(estimate.low)}"
    return f"{form(estimate.value)} ({form(estimate.low)} to {form(estimate.high)})"


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

"""``coadapt profile``: measure layers, a training run or the network of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coadapt import progress
from coadapt.cli import terminal
from coadapt.cli.parameter_types import SECONDS, json_option, python_option

if TYPE_CHECKING:
    from coadapt.wire import RunProfiled

#: Legend of the chart.
_LEGEND = "# share  * total  | 90%"


@click.group("profile")
def command() -> None:
    """Measure layers, a training run or the network of this machine."""


@command.command("layers")
@click.option(
    "-o", "--output", metavar="FILE", default="layers.jsonl", help="File of results; new ones are appended."
)
@click.option("--count", type=click.IntRange(min=1), default=240, help="Number of layers in the file.")
@click.option("--seconds", type=SECONDS, default=180.0, help="Stop after this time.")
@click.option("--device", metavar="NAME", help="cpu or cuda. Default: a GPU if there is one.")
@python_option
def layers(output: str, count: int, seconds: float, device: str | None, python: str | None) -> None:
    """Measure random small layers.

    The layers run on one thread. Run the command again to continue.

    \b
    coadapt profile layers -o mine.jsonl
    coadapt predict train.py:build_model ... --gpu cpu --layer-times mine.jsonl
    """
    from coadapt.planning import measure_layers

    found = measure_layers(output, count=count, seconds=seconds, device=device, python=python).layers
    kinds: dict[str, int] = {}
    for each in found:
        kinds[each.layer.kind] = kinds.get(each.layer.kind, 0) + 1
    of = "" if len(found) >= count else f" of {count}"
    terminal.say(f"Measured {len(found)}{of} layers, see {output}", bold=True)
    if of:
        terminal.say("Run the command again to continue.")
    terminal.say_table(["kind", "layers"], [[kind, str(number)] for kind, number in sorted(kinds.items())])


@command.command("run", context_settings={"ignore_unknown_options": True})
@click.option("--seconds", type=SECONDS, default=60.0, help="Stop the run after this time.")
@click.option("--top", type=click.IntRange(min=1), default=15, help="Number of rows in the table.")
@click.option("--html", "page", metavar="FILE", help="Also write a chart and all operations as an HTML page.")
@click.option("--force", is_flag=True, help="Overwrite the page if it exists.")
@json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- python SCRIPT ...")
def run(
    seconds: float, top: int, page: str | None, force: bool, as_json: bool, words: tuple[str, ...]
) -> None:
    """Show where a PyTorch script spends its time.

    The time is split by type of operation.

    \b
    coadapt profile run -- python train.py --epochs 1
    coadapt profile run --html time.html -- python train.py --epochs 1
    """
    from contextlib import nullcontext

    from coadapt.planning import check_script, profile_script
    from coadapt.report import fresh_file, operation_page

    check_script(words)
    # fail before the run, not after it, if the page cannot be written
    with fresh_file(Path(page), force=force) if page else nullcontext() as part:
        answer = profile_script(words, seconds=seconds)
        if part is not None:
            part.write_text(operation_page(answer, top, script=words[1]), encoding="utf-8")
    _say_run(answer, top, as_json)
    if page and not as_json:
        terminal.say(f"Next: open {page}")


def _say_run(answer: RunProfiled, top: int, as_json: bool) -> None:
    from coadapt.report import (
        largest_operations,
        operation_bars,
        operation_dict,
        operation_headline,
        operation_line,
    )

    if as_json:
        terminal.say_json(operation_dict(answer))
        return
    found = operation_bars(answer.operations)
    if answer.cut:
        progress.note("the run was stopped at the time limit (--seconds)")
    terminal.say(operation_headline(found, answer), bold=True)
    shown = largest_operations(found, top)
    names = max(len(bar.short_name) for bar in shown)
    # 24: width of the other columns
    room = shutil.get_terminal_size((100, 24)).columns - names - 24
    wide = min(max(room, 10), 50)
    table = [
        [
            bar.short_name,
            f"{bar.share:.1%}",
            f"{bar.cumulative:.1%}",
            operation_line(bar, wide),
            f"{bar.seconds:.3f} s",
            f"{bar.calls:,}",
        ]
        for bar in shown
    ]
    terminal.say_table(["operation", "share", "total", _LEGEND[:wide], "time", "calls"], table)


@command.command("network")
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), default="gloo", help="Communication backend.")
@python_option
@json_option
def network(backend: str, python: str | None, as_json: bool) -> None:
    """Measure the latency and bandwidth of all-reduce.

    Between two processes on this machine. Between machines, run:

    \b
    torchrun --nnodes 2 ... -m coadapt.torch.tools.profile_network
    """
    from msgspec.structs import asdict

    from coadapt.planning import profile_network

    answer = profile_network(backend, python=python)
    if as_json:
        terminal.say_json(asdict(answer))
        return
    terminal.say(
        f"{answer.bytes_s / 1e9:.2f} GB/s ({answer.bytes_s * 8e-9:.1f} Gbit/s), latency {answer.latency_s * 1e6:.0f} us, {backend}",
        bold=True,
    )
    rows = [
        [f"{size:,}", f"{1e3 * s:.3f} ms"] for size, s in zip(answer.sizes_bytes, answer.seconds, strict=True)
    ]
    terminal.say_table(["bytes", "all-reduce"], rows, left=0)

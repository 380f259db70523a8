"""``coadapt profile``: measure this machine, so that predictions for it are its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coadapt.cli.parameter_types import SECONDS

if TYPE_CHECKING:
    from coadapt.wire import RunProfiled

_PYTHON = click.option(
    "--python", metavar="PATH", help="Interpreter of the training code; default: this one."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else.")
#: What stands for what in the chart.
_LEGEND = "# share  * sum  | 90%"


@click.group("profile")
def command() -> None:
    """Measure this machine: single layers, where a run's time goes, the network."""


@command.command("layers")
@click.option("-o", "--output", metavar="FILE", default="layers.jsonl", show_default=True, help="Added to.")
@click.option(
    "--count", type=click.IntRange(min=1), default=240, show_default=True, help="Layers in the file."
)
@click.option("--seconds", type=SECONDS, default=180.0, show_default=True, help="Stop after this long.")
@click.option("--device", metavar="NAME", help="cpu or cuda; default: a GPU if there is one.")
@_PYTHON
def layers(output: str, count: int, seconds: float, device: str | None, python: str | None) -> None:
    """Times random small layers, one thread; run again to go on where it stopped.

    \b
    coadapt profile layers -o mine.jsonl
    coadapt predict train.py:build_model ... --gpu cpu --measured mine.jsonl
    """
    from coadapt.cli import terminal
    from coadapt.planning import measure_layers

    found = measure_layers(output, count=count, seconds=seconds, device=device, python=python).layers
    kinds: dict[str, int] = {}
    for each in found:
        kinds[each.layer.kind] = kinds.get(each.layer.kind, 0) + 1
    more = "" if len(found) >= count else f" of {count}; run it again to go on"
    terminal.say(f"{len(found)} layers measured{more}, in {output}", bold=True)
    terminal.say_table(["kind", "layers"], [[kind, str(number)] for kind, number in sorted(kinds.items())])


@command.command("run", context_settings={"ignore_unknown_options": True})
@click.option("--seconds", type=SECONDS, default=60.0, show_default=True, help="End the run after this long.")
@click.option("--top", type=click.IntRange(min=1), default=15, show_default=True, help="Rows of the table.")
@click.option("--html", "page", metavar="FILE", help="Also write the chart and all types as a page.")
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@_JSON
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- python SCRIPT ...")
def run(
    seconds: float, top: int, page: str | None, force: bool, as_json: bool, words: tuple[str, ...]
) -> None:
    """Where the time of a training script goes, by type of operation.

    \b
    coadapt profile run -- python train.py --epochs 1
    coadapt profile run --html time.html -- python train.py --epochs 1
    """
    from contextlib import nullcontext

    from coadapt.planning import check_script, profile_script
    from coadapt.report import fresh_file, operation_page

    check_script(words)
    # a page that cannot be written is said before the run, not after it
    with fresh_file(Path(page), force=force) if page else nullcontext() as part:
        answer = profile_script(words, seconds=seconds)
        if part is not None:
            part.write_text(operation_page(answer, top, script=words[1]), encoding="utf-8")
    _say_run(answer, top, as_json)
    if page and not as_json:
        from coadapt.cli import terminal

        terminal.say(f"Next: open {page}")


def _say_run(answer: RunProfiled, top: int, as_json: bool) -> None:
    from coadapt import progress
    from coadapt.cli import terminal
    from coadapt.report import (
        largest_operations,
        operation_bars,
        operation_dict,
        operation_headline,
        operation_line,
    )

    if as_json:
        terminal.say_rows([operation_dict(answer)], as_json=True, single=True)
        return
    found = operation_bars(answer.operations)
    if answer.cut:
        progress.note("the run was ended at the time limit (--seconds)")
    terminal.say(operation_headline(found, answer), bold=True)
    shown = largest_operations(found, top)
    names = max(len(bar.short_name) for bar in shown)
    # name, share and sum, with what stands between columns, take this much
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
    terminal.say_table(["operation", "share", "sum", _LEGEND[:wide], "time", "calls"], table)


@command.command("network")
@click.option(
    "--backend", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True, help="Transport."
)
@_PYTHON
@_JSON
def network(backend: str, python: str | None, as_json: bool) -> None:
    """Latency and bandwidth of gradients between two processes on this machine.

    Between machines: torchrun --nnodes 2 ... -m coadapt.torch.tools.profile_network
    """
    from msgspec.structs import asdict

    from coadapt.cli import terminal
    from coadapt.planning import profile_network

    answer = profile_network(backend, python=python)
    if as_json:
        terminal.say_rows([asdict(answer)], as_json=True, single=True)
        return
    terminal.say(
        f"{answer.bytes_s / 1e9:.2f} GB/s ({answer.bytes_s * 8e-9:.1f} Gbit/s), latency {answer.latency_s * 1e6:.0f} us, {backend}",
        bold=True,
    )
    rows = [
        [f"{size:,}", f"{1e3 * s:.3f} ms"] for size, s in zip(answer.sizes_bytes, answer.seconds, strict=True)
    ]
    terminal.say_table(["bytes", "all-reduce"], rows, left=0)

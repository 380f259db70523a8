"""``coadapt profile``: measure this machine, so that predictions for it are its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coadapt.cli.finite import SECONDS
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.cli.profile_chart import Bar
    from coadapt.wire.trace import RunProfiled

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
    from coadapt.cli import show
    from coadapt.cli.measured_layers import check_device, read_measured
    from coadapt.cli.progress import Bars
    from coadapt.cli.torch_tools import answers
    from coadapt.wire.trace import LayerMeasured, encode

    if device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", device):
        raise InputError(f"--device {device!r} is neither cpu nor cuda (or one of several: cuda:1)")
    path = Path(output)
    new = not path.exists()
    before = read_measured(output) if path.exists() and path.stat().st_size else None
    done = len(before.layers) if before else 0
    if done < count:
        arguments = ["--from", str(done), "--count", str(count - done), "--seconds", str(seconds)]
        arguments += ["--device", device] if device else []
        try:
            with path.open("ab") as stream, Bars() as bars:
                for answer in answers("profile_layers", arguments, python=python):
                    assert isinstance(answer, LayerMeasured)
                    check_device(output, before.device if before else answer.device, answer.device)
                    stream.write(encode(answer) + b"\n")
                    stream.flush()
                    done += 1
                    bars.update("layers", done, count)
        except OSError as error:
            raise InputError(f"cannot write {output}: {error.strerror}") from None
        finally:
            # a file in which nothing was measured is not left behind
            if new and path.exists() and not path.stat().st_size:
                path.unlink()
        if not done:
            raise InputError(f"no layer was measured within --seconds {seconds:g}; give it longer")
    found = read_measured(output).layers
    kinds: dict[str, int] = {}
    for each in found:
        kinds[each.layer.kind] = kinds.get(each.layer.kind, 0) + 1
    more = "" if done >= count else f" of {count}; run it again to go on"
    show.say(f"{len(found)} layers measured{more}, in {output}", bold=True)
    show.say_table(["kind", "layers"], [[kind, str(number)] for kind, number in sorted(kinds.items())])


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

    from coadapt.cli import profile_chart
    from coadapt.cli.output import fresh_file
    from coadapt.cli.torch_tools import one_answer
    from coadapt.wire.trace import RunProfiled

    if len(words) < 2 or not Path(words[0]).name.startswith("python") or not words[1].endswith(".py"):
        raise InputError(f"{' '.join(words)!r} is not a Python script; write: -- python train.py ...")
    if not Path(words[1]).is_file():
        raise InputError(f"there is no file {words[1]}")
    # a page that cannot be written is said before the run, not after it
    with fresh_file(Path(page), force=force) if page else nullcontext() as part:
        arguments = ["--seconds", str(seconds), *words[1:]]
        answer = one_answer("profile_run", arguments, python=_interpreter(words[0]))
        assert isinstance(answer, RunProfiled)
        if not sum(each.seconds for each in answer.operations) > 0:
            raise InputError(
                f"{words[1]} ran for {answer.wall_s:.1f} s without a PyTorch operation; nothing to show"
            )
        if part is not None:
            found = profile_chart.bars(answer.operations)
            text = profile_chart.page(found, top, script=words[1], headline=_headline(found, answer))
            part.write_text(text, encoding="utf-8")
    _say_run(answer, top, as_json)
    if page and not as_json:
        from coadapt.cli import show

        show.say(f"Next: open {page}")


def _interpreter(word: str) -> str | None:
    """The one named; a bare ``python`` is the one that runs us, which has coadapt."""
    return None if word in ("python", "python3") else word


def _headline(found: Sequence[Bar], answer: RunProfiled) -> str:
    from coadapt.cli.profile_chart import MOST, types_for_most

    most, cut = types_for_most(found), ", ended at the time limit" if answer.cut else ""
    return (
        f"{most} of {len(found)} types of operation make {MOST:.0%} of the time on the {answer.device} "
        f"({answer.wall_s:.1f} s{cut})"
    )


def _say_run(answer: RunProfiled, top: int, as_json: bool) -> None:
    from coadapt.cli import show
    from coadapt.cli.profile_chart import bars, line, short_name, shortened, types_for_most

    found = bars(answer.operations)
    if as_json:
        rows = [
            {
                "operation": bar.name,
                "seconds": bar.seconds,
                "calls": bar.calls,
                "share": bar.share,
                "cumulative": bar.cumulative,
            }
            for bar in found
        ]
        head = {
            "wall_s": answer.wall_s,
            "device": answer.device,
            "cut": answer.cut,
            "operations_for_90": types_for_most(found),
        }
        show.say_rows([{**head, "operations": rows}], as_json=True, single=True)
        return
    if answer.cut:
        show.note("the run was ended at the time limit (--seconds)")
    show.say(_headline(found, answer), bold=True)
    shown = shortened(found, top)
    names = max(len(short_name(bar.name)) for bar in shown)
    # name, share and sum, with what stands between columns, take this much
    room = shutil.get_terminal_size((100, 24)).columns - names - 24
    wide = min(max(room, 10), 50)
    table = [
        [
            short_name(bar.name),
            f"{bar.share:.1%}",
            f"{bar.cumulative:.1%}",
            line(bar, wide),
            f"{bar.seconds:.3f} s",
            f"{bar.calls:,}",
        ]
        for bar in shown
    ]
    show.say_table(["operation", "share", "sum", _LEGEND[:wide], "time", "calls"], table)


@command.command("network")
@click.option(
    "--backend", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True, help="Transport."
)
@_PYTHON
@_JSON
def network(backend: str, python: str | None, as_json: bool) -> None:
    """Latency and bandwidth of gradients between two processes on this machine.

    Between machines: torchrun --nnodes 2 ... -m coadapt.torch.profile_network
    """
    from msgspec.structs import asdict

    from coadapt.cli import show
    from coadapt.cli.torch_tools import one_answer
    from coadapt.wire.trace import LinkMeasured

    answer = one_answer("profile_network", ["--backend", backend], python=python)
    assert isinstance(answer, LinkMeasured)
    if as_json:
        show.say_rows([asdict(answer)], as_json=True, single=True)
        return
    show.say(
        f"{answer.bytes_s / 1e9:.2f} GB/s ({answer.bytes_s * 8e-9:.1f} Gbit/s), latency {answer.latency_s * 1e6:.0f} us, {backend}",
        bold=True,
    )
    rows = [
        [f"{size:,}", f"{1e3 * s:.3f} ms"] for size, s in zip(answer.sizes_bytes, answer.seconds, strict=True)
    ]
    show.say_table(["bytes", "all-reduce"], rows, left=0)

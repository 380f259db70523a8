"""``coadapt watch``: when a training run will be done, by its log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from coadapt.cli.parameter_types import Finite
from coadapt.errors import InfeasibleError

if TYPE_CHECKING:
    from coadapt.explain import LogForecast

_ODD = {"pauses": "pauses", "changes_of_pace": "changes of pace", "restarts": "restarts from earlier"}


@click.command("watch")
@click.argument("log")
@click.option("--follow", is_flag=True, help="Go on as the log grows, until the run is done.")
@click.option(
    "--total",
    type=Finite(most=1e18, above=0),
    help="How much there is to do, in the log's unit, where the log does not say.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, and nothing else; with --follow a line each."
)
def command(log: str, follow: bool, total: float | None, as_json: bool) -> None:
    """When the run that writes LOG will be done ("-": standard input).

    What is shown is kept, and compared with what happened when the log is complete: see 'coadapt calibration'.

    \b
    coadapt watch train.log
    python train.py 2>&1 | coadapt watch - --follow
    """
    from coadapt.explain import follow_log, watch_log

    if not follow:
        _show(watch_log(log, total=total), as_json=as_json)
        return
    try:
        for forecast in follow_log(log, total=total):
            _show(forecast, as_json=as_json, line=True)
    except InfeasibleError:
        _end_line(as_json)
        raise
    _end_line(as_json)


def _show(found: LogForecast, *, as_json: bool, line: bool = False) -> None:
    from coadapt import progress as show
    from coadapt.cli import terminal

    if as_json and line:
        import msgspec

        click.echo(msgspec.json.encode(found.to_dict()).decode())
        return
    if as_json:
        terminal.say_rows([found.to_dict()], as_json=True, single=True)
        return
    progress, rate, left = _texts(found)
    if line:
        text = "  ".join(each for each in (progress, rate, left) if each)
        click.echo(f"\r\x1b[K{text}" if sys.stdout.isatty() else text, nl=not sys.stdout.isatty())
        return
    pairs = {"progress": progress, "rate": rate, "left": left}
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in list(found.metrics.items())[:6])
    pairs["metrics"] = metrics
    odd = [f"{getattr(found, key)} {what}" for key, what in _ODD.items() if getattr(found, key)]
    odd += [f"{name} is not a number" for name in found.not_numbers]
    pairs["seen"] = ", ".join(odd)
    lines = ", ".join(f"{form} ({count})" for form, count in found.understood.items())
    pairs["understood"] = lines + (f"; time by {found.clock}" if found.clock else "")
    for text in terminal.facts({name: value for name, value in pairs.items() if value}):
        terminal.say(text)
    if found.note:
        show.note(found.note)


def _texts(found: LogForecast) -> tuple[str, str, str]:
    from coadapt.cli import terminal

    done, total, unit = found.done, found.total, found.unit
    if unit == "share":
        progress = terminal.share(done)
    else:
        of = "" if total is None else f" of {total:,.0f}"
        share = "" if found.share is None else f" ({terminal.share(found.share)})"
        progress = f"{done:,.6g}{of} {unit}{share}"
    rate = found.rate_per_s
    one = unit.removesuffix("es") if unit == "batches" else unit.removesuffix("s")
    if rate is None:
        speed = ""
    elif unit == "share":
        speed = f"{100 * rate * 60:.3g}% a minute"
    else:
        speed = f"{rate:.3g} {unit}/s" if rate >= 1 else f"{1 / rate:.3g} s per {one}"
    if found.eta_s is None or found.eta_low_s is None or found.eta_high_s is None:
        return progress, speed, ""
    interval = f"{terminal.duration(found.eta_low_s)} to {terminal.duration(found.eta_high_s)}"
    left = "done" if found.eta_s == 0 else f"{terminal.duration(found.eta_s)} (8 in 10: {interval})"
    return progress, speed, left


def _end_line(as_json: bool) -> None:
    if not as_json and sys.stdout.isatty():
        click.echo()

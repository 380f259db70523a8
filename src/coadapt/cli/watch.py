"""``coadapt watch``: predict from its log when a training run ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from coadapt import progress
from coadapt.cli import terminal
from coadapt.cli.parameter_types import DURATION, Finite
from coadapt.errors import InfeasibleError

if TYPE_CHECKING:
    from coadapt.explain import LogForecast

_ODD = {
    "pauses": "pauses",
    "changes_of_pace": "changes of pace",
    "restarts": "restarts from an earlier point",
}


@click.command("watch")
@click.argument("log")
@click.option("--follow", is_flag=True, help="Continue as the log grows, until the run ends.")
@click.option(
    "--total", type=Finite(most=1e18, above=0), help="Total, in the unit of the log, if it is not in the log."
)
@click.option(
    "--steps-per-epoch",
    type=Finite(most=1e12, above=0),
    help="Batches of an epoch, if they are not in the log.",
)
@click.option(
    "--batch", type=Finite(most=1e12, above=0), help="Samples of a step, if they are not in the log."
)
@click.option(
    "--elapsed",
    type=DURATION,
    metavar="TIME",
    help="How long the run has taken so far, if the log tells no times, for example 3h.",
)
@click.option(
    "--target", metavar="METRIC<=VALUE", help="Predict when a metric is reached, too, for example loss<=3.28."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON and nothing else; with --follow one line per update."
)
def command(
    log: str,
    follow: bool,
    total: float | None,
    steps_per_epoch: float | None,
    batch: float | None,
    elapsed: float | None,
    target: str | None,
    as_json: bool,
) -> None:
    """Predict when the training run that writes LOG ends ("-": standard input).

    LOG is what the run prints, in any of the formats in docs/logs.md, or a TensorBoard event file.

    Predictions are recorded, and compared with the actual time once the log is complete: see 'coadapt calibration'.

    \b
    coadapt watch train.log
    coadapt watch train.log --target "val_loss<=3.28"
    python train.py 2>&1 | coadapt watch - --follow
    """
    from coadapt.explain import follow_log, watch_log

    told: dict[str, Any] = {
        "total": total,
        "steps_per_epoch": steps_per_epoch,
        "batch": batch,
        "elapsed_s": elapsed,
        "target": target,
    }
    if not follow:
        _show(watch_log(log, **told), as_json=as_json)
        return
    try:
        for forecast in follow_log(log, **told):
            _show(forecast, as_json=as_json, line=True)
    except InfeasibleError:
        _end_line(as_json)
        raise
    _end_line(as_json)


def _show(found: LogForecast, *, as_json: bool, line: bool = False) -> None:
    if as_json and line:
        import msgspec

        click.echo(msgspec.json.encode(found.to_dict()).decode())
        return
    if as_json:
        terminal.say_json(found.to_dict())
        return
    done, rate, left = _texts(found)
    if line:
        text = "  ".join(each for each in (done, rate, left, _target(found)) if each)
        click.echo(f"\r\x1b[K{text}" if sys.stdout.isatty() else text, nl=not sys.stdout.isatty())
        return
    pairs = {"progress": done, "rate": rate, "remaining": left, "target": _target(found)}
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in list(found.metrics.items())[:6])
    pairs["metrics"] = metrics
    odd = [f"{getattr(found, key)} {what}" for key, what in _ODD.items() if getattr(found, key)]
    odd += [f"{name} is not a number" for name in found.not_numbers]
    pairs["events"] = ", ".join(odd)
    lines = ", ".join(f"{form} ({count})" for form, count in found.understood.items())
    pairs["recognised lines"] = lines + (f"; times from {found.clock}" if found.clock else "")
    for text in terminal.facts({name: value for name, value in pairs.items() if value}):
        terminal.say(text)
    for note in (found.note, None if found.target is None else found.target.note):
        if note:
            progress.note(note)


def _texts(found: LogForecast) -> tuple[str, str, str]:
    done, total, unit = found.done, found.total, found.unit
    if unit == "share":
        text = terminal.share(done)
    else:
        of = "" if total is None else f" of {total:,.0f}"
        share = "" if found.share is None else f" ({terminal.share(found.share)})"
        text = f"{done:,.6g}{of} {unit}{share}"
    rate = found.rate_per_s
    one = unit.removesuffix("es") if unit == "batches" else unit.removesuffix("s")
    if rate is None:
        speed = ""
    elif unit == "share":
        speed = f"{100 * rate * 60:.3g}% per minute"
    else:
        speed = f"{rate:.3g} {unit}/s" if rate >= 1 else f"{1 / rate:.3g} s per {one}"
    if found.eta_s is None or found.eta_low_s is None or found.eta_high_s is None:
        return text, speed, ""
    interval = f"{terminal.duration(found.eta_low_s)} to {terminal.duration(found.eta_high_s)}"
    left = "done" if found.eta_s == 0 else f"{terminal.duration(found.eta_s)} (80% interval {interval})"
    return text, speed, left


def _target(found: LogForecast) -> str:
    aim = found.target
    if aim is None:
        return ""
    if aim.reached:
        return f"{aim.target} reached"
    if aim.eta_s is None or aim.eta_low_s is None:
        return ""
    high = "never" if aim.eta_high_s is None else terminal.duration(aim.eta_high_s)
    return f"{aim.target} in {terminal.duration(aim.eta_s)} (80% interval {terminal.duration(aim.eta_low_s)} to {high})"


def _end_line(as_json: bool) -> None:
    if not as_json and sys.stdout.isatty():
        click.echo()

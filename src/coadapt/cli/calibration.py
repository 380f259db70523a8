"""``coadapt calibration``: what was predicted against what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.parameter_types import DURATION
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.report import Calibration, CalibrationRow, Said
    from coadapt.store import Prediction

_NOTHING_KEPT = (
    "No prediction has been kept yet: 'coadapt watch LOG' and 'coadapt predict ...' keep what they show; "
    "'coadapt calibration DIR' judges a run that 'coadapt simulate TRACE -o DIR' wrote."
)


@click.command("calibration")
@click.argument("run", required=False)
@click.option(
    "--actual",
    nargs=2,
    type=(int, DURATION),
    metavar="ID DURATION",
    help="How long it really took, from prediction ID to the end.",
)
@click.option("--pending", is_flag=True, help="List the predictions kept that wait for their end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else.")
def command(run: str | None, actual: tuple[int, float] | None, pending: bool, as_json: bool) -> None:
    """How good predictions were, by method and by age of the run.

    Of the forecasts in RUN (a directory that 'coadapt simulate -o' wrote, its event log, or a controller's store); without
    RUN, of all that 'coadapt watch' and 'coadapt predict' have shown here.

    \b
    coadapt calibration out/sim
    coadapt calibration --actual 17 3h20m
    """
    if (run is not None) + (actual is not None) + pending > 1:
        raise InputError("RUN, --actual and --pending are three questions; ask one at a time")
    if actual is not None:
        _learn(*actual, as_json=as_json)
    elif pending:
        _list_waiting(as_json)
    elif run is not None:
        _of_run(run, as_json)
    else:
        _of_tools(as_json)


def _of_run(run: str, as_json: bool) -> None:
    from coadapt.report import forecasts
    from coadapt.simulation import read_events

    nothing = (
        f"{run} holds no forecast: of the policies here only coadapt makes them; "
        "run 'coadapt simulate TRACE --policy coadapt -o DIR', then 'coadapt calibration DIR'."
    )
    _say(forecasts(read_events(run)), nothing, as_json)


def _of_tools(as_json: bool) -> None:
    from coadapt.report import said_by_tool
    from coadapt.store import kept_predictions

    _say([said_by_tool(each) for each in kept_predictions()], _NOTHING_KEPT, as_json)


def _say(predictions: list[Said], nothing: str, as_json: bool) -> None:
    from coadapt.cli import terminal
    from coadapt.report import calibrate

    found = calibrate(predictions)
    if as_json:
        terminal.say_rows([found.to_dict()], as_json=True, single=True)
        return
    if not predictions:
        terminal.say(nothing)
        return
    terminal.say(found.verdict[:1].upper() + found.verdict[1:] + ".", bold=True)
    terminal.say()
    several = len({row.method for row in found.rows}) > 1
    rows = [*found.rows, found.total] if several else list(found.rows)
    header = ["METHOD", "AGE", "N", "MEDIAN ERROR", "BIAS", "WITHIN 80% INTERVAL"]
    counts = [name for name in ("pending", "stopped") if getattr(found.total, name)]
    cells = [_cells(row) + [terminal.count(getattr(row, name)) for name in counts] for row in rows]
    terminal.say_table([*header, *(name.upper() for name in counts)], cells, left=2)
    for line in _left_out(found):
        terminal.say(line)


def _cells(row: CalibrationRow) -> list[str]:
    from coadapt.cli import terminal

    return [
        row.method or "-",
        row.age,
        terminal.count(row.judged),
        terminal.shown(row.median_error, terminal.share),
        terminal.shown(row.bias, lambda bias: f"{bias:+.1%}"),
        terminal.shown(row.within, lambda share: f"{share:.0%}"),
    ]


def _left_out(found: Calibration) -> list[str]:
    """What is not judged, and why."""
    lines = []
    if found.total.pending:
        lines.append(f"  pending: {found.total.pending:,}, of what has not ended yet")
    if found.total.stopped:
        lines.append(f"  stopped: {found.total.stopped:,}, of jobs that failed or were cancelled")
    return lines


def _learn(number: int, actual_s: float, *, as_json: bool) -> None:
    from coadapt import progress
    from coadapt.cli import terminal
    from coadapt.report import said_by_tool
    from coadapt.store import tell_actual

    known, before = tell_actual(number, actual_s)
    if as_json:
        terminal.say_rows([known.to_dict()], as_json=True, single=True)
        return
    said = said_by_tool(known)
    off = (
        "just as long"
        if said.bias == 0
        else f"{abs(said.bias):.1%} too {'long' if said.bias > 0 else 'short'}"
    )
    inside = "within" if said.within else "outside"
    terminal.say(
        f"{known.subject}: said {_interval(known)}, took {terminal.duration(actual_s)}: {off}, {inside} its interval"
    )
    if before is not None:
        progress.note(f"prediction {number} had {terminal.duration(before)} as its actual time before")


def _interval(kept: Prediction) -> str:
    from coadapt.cli import terminal

    high = "for ever" if kept.high_s is None else terminal.duration(kept.high_s)
    return f"{terminal.duration(kept.value_s)} ({terminal.duration(kept.low_s)} to {high})"


def _list_waiting(as_json: bool) -> None:
    from coadapt.cli import terminal
    from coadapt.store import kept_predictions

    waiting = [each for each in kept_predictions() if each.actual_s is None]
    if as_json:
        terminal.say_rows([each.to_dict() for each in waiting], as_json=True)
        return
    if not waiting:
        terminal.say("No prediction waits for its end.")
        return
    from datetime import datetime

    rows = [
        [
            str(each.id),
            f"{datetime.fromtimestamp(each.shown_at):%Y-%m-%d %H:%M}",
            each.tool,
            _interval(each),
            each.subject,
        ]
        for each in waiting
    ]
    terminal.say_table(["ID", "SHOWN", "TOOL", "SAID", "SUBJECT"], rows, left=5)
    terminal.say()
    terminal.say("Next: coadapt calibration --actual ID DURATION, the time from then to the end")

"""``coadapt calibration``: compare predictions with the actual times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import DURATION, json_option
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.report import Calibration, CalibrationRow, Said
    from coadapt.store import Prediction

_NOTHING_KEPT = (
    "No predictions recorded yet. 'coadapt watch LOG' and 'coadapt predict ...' record the predictions they show; "
    "'coadapt calibration DIR' evaluates a run written by 'coadapt simulate TRACE -o DIR'."
)


@click.command("calibration")
@click.argument("run", required=False)
@click.option(
    "--actual",
    nargs=2,
    type=(int, DURATION),
    metavar="ID DURATION",
    help="Report the actual time of prediction ID.",
)
@click.option("--pending", is_flag=True, help="List predictions whose run has not ended yet.")
@json_option
def command(run: str | None, actual: tuple[int, float] | None, pending: bool, as_json: bool) -> None:
    """Show how accurate predictions were, by method and by progress of the run.

    RUN is a directory written by 'coadapt simulate -o', its event log, or the store of a controller. Without RUN,
    the predictions of 'coadapt watch' and 'coadapt predict' on this machine are evaluated.

    \b
    coadapt calibration out/sim
    coadapt calibration --actual 17 3h20m
    """
    if (run is not None) + (actual is not None) + pending > 1:
        raise InputError("RUN, --actual and --pending exclude each other")
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
        f"{run} contains no forecasts: only the policy coadapt makes them. "
        "Run 'coadapt simulate TRACE --policy coadapt -o DIR', then 'coadapt calibration DIR'."
    )
    _say(forecasts(read_events(run)), nothing, as_json)


def _of_tools(as_json: bool) -> None:
    from coadapt.report import said_by_tool
    from coadapt.store import kept_predictions

    _say([said_by_tool(each) for each in kept_predictions()], _NOTHING_KEPT, as_json)


def _say(predictions: list[Said], nothing: str, as_json: bool) -> None:
    from coadapt.report import calibrate

    found = calibrate(predictions)
    if as_json:
        terminal.say_json(found.to_dict())
        return
    if not predictions:
        terminal.say(nothing)
        return
    terminal.say(found.verdict[:1].upper() + found.verdict[1:] + ".", bold=True)
    terminal.say()
    several = len({row.method for row in found.rows}) > 1
    rows = [*found.rows, found.total] if several else list(found.rows)
    header = ["METHOD", "PROGRESS", "N", "MEDIAN ERROR", "BIAS", "WITHIN 80% INTERVAL"]
    counts = [name for name in ("pending", "stopped") if getattr(found.total, name)]
    cells = [_cells(row) + [terminal.count(getattr(row, name)) for name in counts] for row in rows]
    terminal.say_table([*header, *(name.upper() for name in counts)], cells, left=2)
    for line in _left_out(found):
        terminal.say(line)


def _cells(row: CalibrationRow) -> list[str]:
    return [
        row.method or "-",
        row.age,
        terminal.count(row.judged),
        terminal.shown(row.median_error, terminal.share),
        terminal.shown(row.bias, lambda bias: f"{bias:+.1%}"),
        terminal.shown(row.within, lambda share: f"{share:.0%}"),
    ]


def _left_out(found: Calibration) -> list[str]:
    """Lines about predictions that cannot be evaluated."""
    lines = []
    if found.total.pending:
        lines.append(f"  pending: {found.total.pending:,} predictions of runs that have not ended")
    if found.total.stopped:
        lines.append(f"  stopped: {found.total.stopped:,} predictions of jobs that failed or were cancelled")
    return lines


def _learn(number: int, actual_s: float, *, as_json: bool) -> None:
    from coadapt import progress
    from coadapt.report import said_by_tool
    from coadapt.store import tell_actual

    known, before = tell_actual(number, actual_s)
    if as_json:
        terminal.say_json(known.to_dict())
        return
    judged = said_by_tool(known)
    error = (
        "exact"
        if judged.bias == 0
        else f"{abs(judged.bias):.1%} too {'long' if judged.bias > 0 else 'short'}"
    )
    inside = "within" if judged.within else "outside"
    terminal.say(
        f"{known.subject}: predicted {_interval(known)}, actual {terminal.duration(actual_s)}: "
        f"{error}, {inside} the 80% interval"
    )
    if before is not None:
        progress.note(f"replaced the actual time {terminal.duration(before)} of prediction {number}")


def _interval(prediction: Prediction) -> str:
    high = "no limit" if prediction.high_s is None else terminal.duration(prediction.high_s)
    return f"{terminal.duration(prediction.value_s)} ({terminal.duration(prediction.low_s)} to {high})"


def _list_waiting(as_json: bool) -> None:
    from coadapt.store import kept_predictions

    waiting = [each for each in kept_predictions() if each.actual_s is None]
    if as_json:
        terminal.say_json([each.to_dict() for each in waiting])
        return
    if not waiting:
        terminal.say("No pending predictions.")
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
    terminal.say_table(["ID", "MADE", "TOOL", "PREDICTED", "SUBJECT"], rows, left=5)
    terminal.say()
    terminal.say(
        "Next: coadapt calibration --actual ID DURATION, with the time from the prediction to the end"
    )

"""``coadapt calibration``: what was predicted against what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli.options import DURATION
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.report import Calibration, CalibrationRow, Said
    from coadapt.store.predictions import Prediction

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
    from coadapt.cli.event_logs import read_events
    from coadapt.report import forecasts

    nothing = (
        f"{run} holds no forecast: of the policies here only coadapt makes them; "
        "run 'coadapt simulate TRACE --policy coadapt -o DIR', then 'coadapt calibration DIR'."
    )
    _say(forecasts(read_events(run)), nothing, as_json)


def _of_tools(as_json: bool) -> None:
    _say([_said(each) for each in _kept()], _NOTHING_KEPT, as_json)


def _kept() -> list[Prediction]:
    """Everything kept; a file that is not there is not made by looking."""
    from coadapt.store.predictions import Predictions, default_file

    if not default_file().exists():
        return []
    with Predictions() as store:
        return store.all()


def _said(kept: Prediction) -> Said:
    from coadapt.report import Said

    return Said(
        left_s=kept.value_s,
        low_s=kept.low_s,
        high_s=kept.high_s,
        method=f"{kept.tool}: {kept.method}" if kept.method else kept.tool,
        done=kept.done,
        actual_s=kept.actual_s,
    )


def _say(predictions: list[Said], nothing: str, as_json: bool) -> None:
    from coadapt.cli import show
    from coadapt.report import calibrate

    found = calibrate(predictions)
    if as_json:
        show.say_rows([_plain(found)], as_json=True, single=True)
        return
    if not predictions:
        show.say(nothing)
        return
    show.say(found.verdict[:1].upper() + found.verdict[1:] + ".", bold=True)
    show.say()
    several = len({row.method for row in found.rows}) > 1
    rows = [*found.rows, found.total] if several else list(found.rows)
    header = ["METHOD", "AGE", "N", "MEDIAN ERROR", "BIAS", "WITHIN 80% INTERVAL"]
    counts = [name for name in ("pending", "stopped") if getattr(found.total, name)]
    cells = [_cells(row) + [show.count(getattr(row, name)) for name in counts] for row in rows]
    show.say_table([*header, *(name.upper() for name in counts)], cells, left=2)
    for line in _left_out(found):
        show.say(line)


def _cells(row: CalibrationRow) -> list[str]:
    from coadapt.cli import show

    return [
        row.method or "-",
        row.age,
        show.count(row.judged),
        show.shown(row.median_error, show.share),
        show.shown(row.bias, lambda bias: f"{bias:+.1%}"),
        show.shown(row.within, lambda share: f"{share:.0%}"),
    ]


def _left_out(found: Calibration) -> list[str]:
    """What is not judged, and why."""
    lines = []
    if found.total.pending:
        lines.append(f"  pending: {found.total.pending:,}, of what has not ended yet")
    if found.total.stopped:
        lines.append(f"  stopped: {found.total.stopped:,}, of jobs that failed or were cancelled")
    return lines


def _plain(found: Calibration) -> dict[str, Any]:
    from msgspec.structs import asdict

    return {
        **_numbers(asdict(found.total)),
        "verdict": found.verdict,
        "rows": [asdict(row) for row in found.rows],
    }


def _numbers(total: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in total.items() if name not in ("method", "age")}


def _learn(number: int, actual_s: float, *, as_json: bool) -> None:
    from coadapt.cli import show
    from coadapt.store.predictions import Predictions, default_file

    if actual_s <= 0:
        raise InputError(f"--actual {number}: a run takes more than 0 seconds")
    if not default_file().exists():
        raise InputError(f"there is no prediction {number}: none has been kept in {default_file().parent}")
    with Predictions() as store:
        before = store.one(number).actual_s
        known = store.learn(number, actual_s)
    if as_json:
        show.say_rows([_row(known)], as_json=True, single=True)
        return
    said = _said(known)
    off = (
        "just as long"
        if said.bias == 0
        else f"{abs(said.bias):.1%} too {'long' if said.bias > 0 else 'short'}"
    )
    inside = "within" if said.within else "outside"
    show.say(
        f"{known.subject}: said {_interval(known)}, took {show.duration(actual_s)}: {off}, {inside} its interval"
    )
    if before is not None:
        show.note(f"prediction {number} had {show.duration(before)} as its actual time before")


def _interval(kept: Prediction) -> str:
    from coadapt.cli import show

    high = "for ever" if kept.high_s is None else show.duration(kept.high_s)
    return f"{show.duration(kept.value_s)} ({show.duration(kept.low_s)} to {high})"


def _list_waiting(as_json: bool) -> None:
    from coadapt.cli import show

    waiting = [each for each in _kept() if each.actual_s is None]
    if as_json:
        show.say_rows([_row(each) for each in waiting], as_json=True)
        return
    if not waiting:
        show.say("No prediction waits for its end.")
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
    show.say_table(["ID", "SHOWN", "TOOL", "SAID", "SUBJECT"], rows, left=5)
    show.say()
    show.say("Next: coadapt calibration --actual ID DURATION, the time from then to the end")


def _row(kept: Prediction) -> dict[str, Any]:
    from msgspec.structs import asdict

    return {name: value for name, value in asdict(kept).items() if not name.startswith("mark")}

"""``coadapt watch``: when a training run will be done, by its log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from coadapt.cli.finite import Finite
from coadapt.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from coadapt.cli.log_predictions import LogPredictions
    from coadapt.predict.log_progress import LogState

_CHUNK = 1 << 20
#: A line that does not end is kept up to this length; the rest of it says nothing we know.
_MOST_PENDING = 1 << 16
_POLL_S = 0.5


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
    with _opened(log) as stream:
        from coadapt.cli.kept import Kept
        from coadapt.cli.log_predictions import LogPredictions

        said = LogPredictions(log, Kept("watch"))
        if follow:
            _follow(stream, log, total, as_json, said)
            return
        state = _read_all(stream, log, said)
    _check(state, log)
    answer = _answer(state, total)
    answer["prediction_id"] = said.shown(state, answer)
    _show(answer, as_json=as_json)


def _opened(log: str) -> IO[bytes]:
    if log == "-":
        return sys.stdin.buffer
    path = Path(log)
    if path.is_dir():
        raise InputError(f"{log} is a directory; name the log file")
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {log}: {error.strerror}") from None


def _read_all(stream: IO[bytes], log: str, said: LogPredictions) -> LogState:
    from coadapt.predict.log_progress import LogState

    state, pending = LogState(), b""
    while chunk := stream.read(_CHUNK):
        state, pending = _take(state, pending + chunk, log, None, said)
    return _take(state, pending + b"\n", log, None, said)[0]


def _take(
    state: LogState, data: bytes, log: str, seen_s: float | None, said: LogPredictions
) -> tuple[LogState, bytes]:
    """Reads the whole lines of ``data``; the last one may not be complete yet."""
    from coadapt.predict.log_progress import read
    from coadapt.predict.training_log import parse, segments

    if b"\0" in data:
        raise InputError(f"{log} is a binary file; name the text that the run prints")
    # a progress bar may go on for hours without a line feed
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    for part in segments(data[:end].decode("utf-8", "replace")):
        reading = parse(part)
        if reading is not None:
            state = read(state, reading, seen_s)
            said.passed(state)
    return state, data[end:][-_MOST_PENDING:]


def _follow(stream: IO[bytes], log: str, total: float | None, as_json: bool, said: LogPredictions) -> None:
    from coadapt.predict.log_progress import LogState

    state, pending, shown = LogState(), b"", None
    for chunk in _growing(stream, log):
        if chunk is None:
            state, pending, shown = LogState(), b"", None  # written anew
            said.begin()
            continue
        state, pending = _take(state, pending + chunk, log, time.monotonic(), said)
        if state.done is None or state.done == shown:
            continue
        shown = state.done
        answer = _answer(state, total)
        answer["prediction_id"] = said.shown(state, answer)
        _show(answer, as_json=as_json, line=True)
        if answer["total"] is not None and answer["done"] >= answer["total"]:
            break
    _end_line(as_json)
    _check(state, log)


def _growing(stream: IO[bytes], log: str) -> Iterator[bytes | None]:
    """What is added to the file, for ever; None where it was cut and begins anew. A pipe ends."""
    if log == "-":
        while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]
            yield chunk
        return
    while True:
        if chunk := stream.read(_CHUNK):
            yield chunk
            continue
        if Path(log).exists() and Path(log).stat().st_size < stream.tell():
            stream.seek(0)
            yield None
        time.sleep(_POLL_S)


def _check(state: LogState, log: str) -> None:
    if state.done is None:
        raise InfeasibleError(
            f"{log} has no line that tells progress; understood are lines such as 'Epoch [3/90] Batch 10/390', "
            "'step 100/5000', progress bars of tqdm, Lightning and Keras, and 'COADAPT {\"progress\": 0.25}'"
        )


def _answer(state: LogState, total: float | None) -> dict[str, Any]:
    """All there is to say, as plain data."""
    from coadapt.predict.eta import FEW_STEPS, eta, seconds_per_work, steps_seen
    from coadapt.predict.log_progress import CLOCKS

    assert state.done is not None
    total = state.total if total is None else total
    pace = seconds_per_work(state.run)
    left = None if total is None or total < state.done else eta(state.run, total - state.done)
    note = None
    if total is None:
        note = f"the log does not say how many {state.unit} there are; say so by --total"
    elif total < state.done:
        note = f"{state.done:g} of {total:g} {state.unit} done: the total is wrong"
    elif left is None:
        # a single line with a timestamp tells when it was, not yet how long anything takes
        timed = state.clock or state.stamp_s is not None
        note = (
            "too little is done to tell the pace"
            if timed
            else "the log tells no time; use --follow to measure it"
        )
    elif left.value and (timed_steps := steps_seen(state.run)) < FEW_STEPS:
        note = f"{timed_steps} steps timed at the present pace: too few to know their spread, so the interval is wide"
    return {
        "done": state.done,
        "total": total,
        "unit": state.unit,
        "share": None if not total else min(state.done / total, 1.0),
        "rate_per_s": None if pace is None else 1 / pace.value,
        "eta_s": None if left is None else left.value,
        "eta_low_s": None if left is None else left.low,
        "eta_high_s": None if left is None else left.high,
        "pauses": state.run.pauses,
        "changes_of_pace": state.run.changes,
        "restarts": state.run.setbacks,
        "metrics": {name: value for name, value in state.metrics.items() if value - value == 0},
        "not_numbers": [name for name, value in state.metrics.items() if value - value != 0],
        "understood": state.forms,
        "clock": CLOCKS[state.clock] or None,
        "note": note,
    }


def _show(answer: dict[str, Any], *, as_json: bool, line: bool = False) -> None:
    from coadapt.cli import show

    if as_json and line:
        import msgspec

        click.echo(msgspec.json.encode(answer).decode())
        return
    if as_json:
        show.say_rows([answer], as_json=True, single=True)
        return
    progress, rate, left = _texts(answer)
    if line:
        text = "  ".join(each for each in (progress, rate, left) if each)
        click.echo(f"\r\x1b[K{text}" if sys.stdout.isatty() else text, nl=not sys.stdout.isatty())
        return
    pairs = {"progress": progress, "rate": rate, "left": left}
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in list(answer["metrics"].items())[:6])
    pairs["metrics"] = metrics
    odd = [f"{answer[key]} {what}" for key, what in _ODD.items() if answer[key]]
    odd += [f"{name} is not a number" for name in answer["not_numbers"]]
    pairs["seen"] = ", ".join(odd)
    lines = ", ".join(f"{form} ({count})" for form, count in answer["understood"].items())
    pairs["understood"] = lines + (f"; time by {answer['clock']}" if answer["clock"] else "")
    for text in show.facts({name: value for name, value in pairs.items() if value}):
        show.say(text)
    if answer["note"]:
        show.note(answer["note"])


_ODD = {"pauses": "pauses", "changes_of_pace": "changes of pace", "restarts": "restarts from earlier"}


def _texts(answer: dict[str, Any]) -> tuple[str, str, str]:
    from coadapt.cli import show

    done, total, unit = answer["done"], answer["total"], answer["unit"]
    if unit == "share":
        progress = show.share(done)
    else:
        of = "" if total is None else f" of {total:,.0f}"
        share = "" if answer["share"] is None else f" ({show.share(answer['share'])})"
        progress = f"{done:,.6g}{of} {unit}{share}"
    rate = answer["rate_per_s"]
    one = unit.removesuffix("es") if unit == "batches" else unit.removesuffix("s")
    if rate is None:
        speed = ""
    elif unit == "share":
        speed = f"{100 * rate * 60:.3g}% a minute"
    else:
        speed = f"{rate:.3g} {unit}/s" if rate >= 1 else f"{1 / rate:.3g} s per {one}"
    if answer["eta_s"] is None:
        return progress, speed, ""
    interval = f"{show.duration(answer['eta_low_s'])} to {show.duration(answer['eta_high_s'])}"
    left = "done" if answer["eta_s"] == 0 else f"{show.duration(answer['eta_s'])} (8 in 10: {interval})"
    return progress, speed, left


def _end_line(as_json: bool) -> None:
    if not as_json and sys.stdout.isatty():
        click.echo()

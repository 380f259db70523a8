from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from coadapt.cli.main import run
from coadapt.model import DecisionMade, Forecast, encode
from coadapt.store import SqliteLog
from coadapt.store.prediction_ledger import Prediction, Predictions, default_file
from tests.unit.report.logs import Log, on

Printed = pytest.CaptureFixture[str]


def a_run(jobs: int = 30, ended: int = 30, *, foretold: bool = True) -> Log:
    """Jobs of 100 s, each foretold at its beginning, 100 s too."""
    log = Log()
    left = Forecast(left_s=100.0, low_s=90.0, high_s=110.0, method="declared", done=0.0)
    for number in range(jobs):
        job, at = f"j{number}", 200.0 * number
        log.submit(at, job)
        log.event(at, DecisionMade(decision=number, forecasts={job: left} if foretold else {}))
        log.start(at, job, on(n0=1))
        if number < ended:
            log.finish(at + 100, job)
    return log


def as_directory(log: Log, path: Path) -> Path:
    path.mkdir()
    (path / "events.jsonl.gz").write_bytes(gzip.compress(b"".join(encode(r) + b"\n" for r in log.records)))
    return path


def as_gzip(log: Log, path: Path) -> Path:
    return as_directory(log, path) / "events.jsonl.gz"


def as_lines(log: Log, path: Path) -> Path:
    path.write_bytes(b"".join(encode(r) + b"\n" for r in log.records))
    return path


def as_store(log: Log, path: Path) -> Path:
    store = SqliteLog(path)
    store.append(log.records)
    store.close()
    return path


def keep(**fields: object) -> int:
    shown: dict[str, object] = {
        "tool": "predict",
        "subject": "train.py:net",
        "method": "learned",
        "value_s": 100.0,
        "low_s": 90.0,
        "high_s": 120.0,
        "done": 0.0,
        "shown_at": 1e9,
    }
    with Predictions() as store:
        return store.add(Prediction(**{**shown, **fields}))  # type: ignore[arg-type]


def is_refused(arguments: list[str], said: str, capsys: Printed) -> None:
    assert run(["calibration", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert "internal error" not in err


@pytest.mark.parametrize("form", [as_directory, as_gzip, as_lines, as_store])
def test_calibration_of_a_run_in_every_form(
    form: Callable[[Log, Path], Path], tmp_path: Path, capsys: Printed
) -> None:
    path = form(a_run(jobs=32, ended=30), tmp_path / "run")
    assert run(["calibration", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0] == "100% of 30 actual times are within the 80% interval: too wide."
    header, row, last = out.splitlines()[2:]
    assert header.split() == [
        *("METHOD", "PROGRESS", "N", "MEDIAN", "ERROR", "BIAS", "WITHIN", "80%", "INTERVAL", "PENDING"),
    ]
    assert row.split() == ["declared", "0-10%", "30", "0.0%", "+0.0%", "100%", "2"]
    assert last == "  pending: 2 predictions of runs that have not ended"


def test_calibration_as_json_has_every_number(tmp_path: Path, capsys: Printed) -> None:
    path = as_directory(a_run(jobs=32, ended=30), tmp_path / "run")
    assert run(["calibration", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == [
        *("judged", "pending", "stopped", "median_error", "bias", "within", "verdict", "rows"),
    ]
    assert (answer["judged"], answer["pending"], answer["within"]) == (30, 2, 1.0)
    assert [(row["method"], row["age"]) for row in answer["rows"]] == [("declared", "0-10%")]


def test_run_without_forecasts_says_what_to_run(tmp_path: Path, capsys: Printed) -> None:
    path = as_directory(a_run(foretold=False), tmp_path / "run")
    assert run(["calibration", str(path)]) == 0
    out, _ = capsys.readouterr()
    assert out.count("\n") == 1
    assert "contains no forecasts" in out
    assert "coadapt simulate TRACE --policy coadapt -o DIR" in out


def _truncated(path: Path) -> None:
    whole = as_gzip(a_run(), path.with_name("whole")).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "contains no events.jsonl.gz"),
        (lambda path: path.write_text("job,submit_s\na,1\n"), "run:1 is not a record of an event log"),
        (lambda path: path.write_text('{"seq":0}\n'), "run:1 is not a record"),
        (lambda path: path.write_bytes(b"\xff\xfe\n"), "run:1 is not a record"),
        (lambda path: path.write_bytes(gzip.compress(b"{}\n") + b"rest"), "is not a record"),
        (_truncated, "is damaged after line"),
        (_foreign, "database of another program"),
    ],
)
def test_what_is_no_run_is_one_line(
    make: Callable[[Path], object], said: str, tmp_path: Path, capsys: Printed
) -> None:
    make(tmp_path / "run")
    is_refused([str(tmp_path / "run")], said, capsys)


def test_file_of_predictions_is_no_run(capsys: Printed) -> None:
    keep()
    is_refused([str(default_file())], "holds predictions, not events", capsys)


def test_nothing_kept_yet_says_what_to_run_and_makes_no_file(capsys: Printed) -> None:
    assert run(["calibration"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    assert "coadapt watch LOG" in out
    assert run(["calibration", "--pending"]) == 0
    assert capsys.readouterr().out == "No pending predictions.\n"
    assert run(["calibration", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []
    assert not default_file().parent.exists()


def test_truth_that_the_user_tells_is_in_the_table(capsys: Printed) -> None:
    early, late = keep(), keep(tool="watch", method="pace", done=0.6, subject="train.log")
    assert run(["calibration", "--actual", str(early), "1m20s"]) == 0
    out, err = capsys.readouterr()
    assert (
        out
        == "train.py:net: predicted 1m 40s (1m 30s to 2m), actual 1m 20s: 25.0% too long, outside the 80% interval\n"
    )
    assert err == ""
    assert run(["calibration"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert out.startswith("1 evaluated so far: too few to assess")
    assert ["predict:", "learned", "0-10%", "1", "25.0%", "+25.0%", "0%", "0"] in rows
    assert ["watch:", "pace", "50-75%", "0", "-", "-", "-", "1"] in rows
    assert ["all", "all", "1", "25.0%", "+25.0%", "0%", "1"] in rows
    assert run(["calibration", "--pending"]) == 0
    listed = capsys.readouterr().out
    assert f"  {late}   " in listed
    assert "train.log" in listed
    assert "train.py:net" not in listed


def test_truth_may_be_corrected_and_that_is_said(capsys: Printed) -> None:
    number = keep(high_s=None)
    assert run(["calibration", "--actual", str(number), "100"]) == 0
    assert "(1m 30s to no limit), actual 1m 40s: exact, within the 80% interval" in capsys.readouterr().out
    assert run(["calibration", "--actual", str(number), "3h", "--json"]) == 0
    out, _ = capsys.readouterr()
    assert json.loads(out)["actual_s"] == 10800
    assert json.loads(out)["id"] == number
    assert run(["calibration", "--actual", str(number), "2h"]) == 0
    assert "replaced the actual time 3h of prediction" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--actual", "2", "1h"], "there is no prediction 2; kept are 1 to 1"),
        (["--actual", str(10**30), "1h"], "there is no prediction"),
        (["--actual", "1", "soon"], "'soon' is not a duration"),
        (["--actual", "1", "-5"], "'-5' is not a duration"),
        (["--actual", "1", "0s"], "more than 0 seconds"),
        (["--actual", "one", "1h"], "'one' is not a valid integer"),
        (["--actual", "1"], "requires 2 arguments"),
        (["out", "--actual", "1", "1h"], "exclude each other"),
        (["out", "--pending"], "exclude each other"),
        (["--pending", "--actual", "1", "1h"], "exclude each other"),
    ],
)
def test_bad_questions_are_one_line(arguments: list[str], said: str, capsys: Printed) -> None:
    assert keep() == 1
    is_refused(arguments, said, capsys)


def test_truth_of_what_was_never_kept_is_refused(capsys: Printed) -> None:
    is_refused(["--actual", "1", "1h"], "there is no prediction 1: no predictions are stored", capsys)
    assert not default_file().parent.exists()


def test_damaged_store_is_one_line(capsys: Printed) -> None:
    default_file().parent.mkdir(parents=True)
    default_file().write_bytes(b"junk" * 1000)
    is_refused([], "is damaged or no coadapt store", capsys)

"""What users write: understood, or refused in one line."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from coadapt.cli import past_runs, plan_files
from coadapt.cli.plan_words import parse_deadline, parse_gpus, parse_money, parse_range, parse_target
from coadapt.errors import InputError

NOW = datetime(2026, 11, 16, 14, 30)  # a Monday


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("6h", 6),
        ("in 1h30m", 1.5),
        ("tomorrow 9:00", 18.5),
        ("Tomorrow 9am", 18.5),
        ("tomorrow", 33.5),
        ("today 18:00", 3.5),
        ("18:00", 3.5),
        ("9:00", 18.5),
        ("tuesday 14:30", 24),
        ("mon 14:00", 7 * 24 - 0.5),
        ("2026-11-17 09:00", 18.5),
        ("2026-11-17", 33.5),
    ],
)
def test_deadlines_are_understood(text: str, hours: float) -> None:
    assert parse_deadline(text, NOW) == pytest.approx(hours * 3600)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "soon",
        "tomorrow 25:00",
        "tomorrow 9:77",
        "today 9:00",
        "2020-01-01",
        "0h",
        "-3h",
        "9",
        "13pm",
    ],
)
def test_other_deadlines_are_refused(text: str) -> None:
    if text == "9":  # seconds, as everywhere
        assert parse_deadline(text, NOW) == 9
        return
    with pytest.raises(InputError, match="deadline"):
        parse_deadline(text, NOW)


def test_targets_gpus_ranges_money() -> None:
    assert parse_target("val_acc >= 0.93") == ("val_acc", True, 0.93)
    assert parse_target("wer<=25") == ("wer", False, 25.0)
    assert parse_target("acc>=93%") == ("acc", True, 0.93)
    assert parse_gpus("A100:1..8, t4:4") == [("a100", 1, 8), ("t4", 4, 4)]
    assert parse_gpus("2..6") == [("gpu", 2, 6)]
    assert parse_range("batch", "32..64") == (32, 64)
    assert parse_money("$1,200.50") == 1200.5


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_target, "0.93"),
        (parse_target, "acc>=high"),
        (parse_target, "acc>=1.2.3"),
        (parse_gpus, "a100:8..1"),
        (parse_gpus, "a100:0"),
        (parse_gpus, "a100;4"),
        (parse_gpus, ""),
        (parse_money, "forty"),
        (parse_money, "-4"),
        (parse_money, "nan"),
    ],
)
def test_nonsense_is_refused_in_one_line(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as error:
        parse(text)
    assert "\n" not in str(error.value)


def samples(path: Path, text: str) -> object:
    path.write_text(text)
    return past_runs.read_samples(
        str(path), metric=None, higher_is_better=True, gpus_per_node=4, gpu_type="t4"
    )


def test_samples_are_read_with_other_names_and_gaps(tmp_path: Path) -> None:
    found = samples(
        tmp_path / "runs.csv",
        "batch_size,gpus,epochs,epoch_time,val_acc,note\n32,2,5,10.5,0.8,x\n64,1,,20,,\n32,,9,,0.85,\n",
    )
    assert len(found.epochs["t4"].samples) == 2  # type: ignore[attr-defined]
    assert len(found.metrics.samples) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column 'batch'"),
        ("a,b\n1,2\n", "no column 'batch'"),
        ("batch,epoch_s\n32,fast\n", "'fast' is not a number"),
        ("batch,epoch_s\n3.5,1\n", "3.5 must be a whole number"),
        ("batch,epoch_s\n,1\n", "is empty"),
        ("batch,epoch_s\n32,nan\n", "not a finite number"),
        ("batch,epoch_s\n32,-1\n", "more than 0 seconds"),
        ("batch,epoch_s\n32,\n", "has no run"),
    ],
)
def test_bad_samples_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        samples(tmp_path / "runs.csv", text)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.yaml", "a1000: 2\n", "unknown GPU 'a1000'"),
        ("p.yaml", "t4: free\n", "must be a number"),
        ("p.yaml", "t4: -1\n", "must be 0 or more"),
        ("p.yaml", "- t4\n", "must be a mapping"),
        ("p.yaml", "{}\n", "has no price"),
        ("p.yaml", "t4: [\n", "not YAML"),
        ("p.csv", "card,cost\nt4,1\n", "needs the columns gpu and price"),
    ],
)
def test_bad_prices_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        plan_files.read_prices(str(tmp_path / name), ["t4"])


def test_prices_of_on_premise_types_are_taken_where_they_are_offered(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("gpu,price\nbasement,0.1\nT4,0.5\n")
    assert plan_files.read_prices(str(tmp_path / "p.csv"), ["basement"]) == (
        {"basement": 0.1, "t4": 0.5},
        None,
    )


def test_a_misspelt_key_of_the_specification_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("name: x\ndeadlin: 6h\n")
    with pytest.raises(InputError, match="unknown key deadlin; did you mean 'deadline'"):
        plan_files.read_spec(str(tmp_path / "t.yaml"))
    (tmp_path / "t.yaml").write_text("batch: {initail: 3}\n")
    with pytest.raises(InputError, match=r"unknown key batch.initail; did you mean 'initial'"):
        plan_files.read_spec(str(tmp_path / "t.yaml"))

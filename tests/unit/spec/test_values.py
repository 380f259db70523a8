"""What users write: understood, or refused in one line."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from coadapt.errors import InputError, suggestion
from coadapt.planning import past_runs
from coadapt.spec import prices
from coadapt.spec.deadline import parse_deadline
from coadapt.spec.gpus import parse_gpus, parse_range
from coadapt.spec.job_file import read_job
from coadapt.spec.prices import parse_money
from coadapt.spec.target import parse_target
from coadapt.units import parse_bytes

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
    ("text", "runs"),
    [
        # passes that rise are of one run; passes that fall, or another configuration, begin another
        ("batch,workers,epochs,acc\n8,1,1,.1\n8,1,2,.2\n8,1,1,.1\n8,1,2,.3\n8,2,3,.4\n", [0, 0, 1, 1, 2]),
        # by name, in any order
        ("run,batch,epochs,acc\na,8,1,.1\nb,8,1,.2\na,8,2,.3\nb,8,2,.4\n", [0, 1, 0, 1]),
    ],
)
def test_rows_of_past_runs_belong_to_runs(tmp_path: Path, text: str, runs: list[int]) -> None:
    found = samples(tmp_path / "runs.csv", text).metrics.samples  # type: ignore[attr-defined]
    rows = [line.split(",") for line in text.splitlines()[1:]]
    expected = {(float(row[-2]), float(row[-1]), run) for row, run in zip(rows, runs, strict=True)}
    assert {(sample.epochs, sample.metric, sample.run) for sample in found} == expected


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
        ("p.yaml", "t4: -1\n", "a number, 0 or more, the price per GPU-hour"),
        ("p.yaml", "t4: 1\nT4: 2\n", "t4 has two prices"),
        ("p.yaml", "t4: true\n", "must be a number"),
        ("p.yaml", "- t4\n", "must be a mapping"),
        ("p.yaml", "{}\n", "contains no price"),
        ("p.yaml", "t4: [\n", "not YAML"),
        ("p.csv", "card,cost\nt4,1\n", "needs the columns gpu and price"),
    ],
)
def test_bad_prices_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        prices.read_prices(str(tmp_path / name), ["t4"])


def test_prices_of_on_premise_types_are_taken_where_they_are_offered(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("gpu,price\nbasement,0.1\nT4,0.5\n")
    assert prices.read_prices(str(tmp_path / "p.csv"), ["basement"]) == (
        {"basement": 0.1, "t4": 0.5},
        None,
    )


def test_a_misspelt_key_of_the_specification_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("name: x\ndeadlin: 6h\n")
    with pytest.raises(InputError, match="unknown key 'deadlin'; did you mean 'deadline'"):
        read_job(str(tmp_path / "t.yaml"))
    (tmp_path / "t.yaml").write_text("batch: {initail: 3}\n")
    with pytest.raises(InputError, match=r"unknown key 'batch.initail'; did you mean 'initial'"):
        read_job(str(tmp_path / "t.yaml"))


def test_clock_times_dates_and_small_numbers_of_yaml_are_what_they_look_like(tmp_path: Path) -> None:
    """YAML 1.1 would make 540 of 9:00, a date of 2026-11-17 and a text of 1e-3."""
    (tmp_path / "t.yaml").write_text("deadline: 9:00\nlr: 1e-3\nnum_nodes: 1\n")
    found = read_job(str(tmp_path / "t.yaml"), NOW)
    assert found.spec.deadline_s == 18.5 * 3600
    assert found.given["lr"] == 1e-3
    (tmp_path / "t.yaml").write_text("deadline: 2026-11-17\n")
    assert read_job(str(tmp_path / "t.yaml"), NOW).spec.deadline_s == 33.5 * 3600
    for text in ("num_nodes: 010", "num_nodes: 1:30", f"epochs: {'9' * 400}", f"num_nodes: {'9' * 400}"):
        (tmp_path / "t.yaml").write_text(f"{text}\n")
        with pytest.raises(InputError, match="must be a"):
            read_job(str(tmp_path / "t.yaml"), NOW)


@pytest.mark.parametrize("text", ["9999-12-31", "0001-01-01", "9" * 400 + "h", "9" * 400])
def test_deadlines_beyond_any_calendar_are_one_line(text: str) -> None:
    with pytest.raises(InputError, match="deadline"):
        parse_deadline(text, NOW)


def test_size_beyond_any_number_is_one_line() -> None:
    with pytest.raises(InputError, match="not a size"):
        parse_bytes("9" * 400 + "GB")


def test_numbers_and_dates_are_deadlines_too() -> None:
    assert parse_deadline(3600, NOW) == 3600.0
    assert parse_deadline(datetime(2026, 11, 16, 15, 30), NOW) == 3600.0
    for wrong in (0, -5, float("nan"), float("inf"), True):
        with pytest.raises(InputError, match="deadline"):
            parse_deadline(wrong, NOW)


def test_type_alone_is_one_gpu_of_it_and_nodes_multiply() -> None:
    assert parse_gpus("t4") == [("t4", 1, 1)]
    assert parse_gpus("t4:1..4,a100", nodes=2) == [("t4", 2, 8), ("a100", 2, 2)]


def test_prices_are_of_one_gpu_however_it_is_written() -> None:
    found = prices.Prices(
        prices.checked_prices({"NVIDIA T4": 1, "RTX 2080 Ti": 2, "Basement": 3}, ["basement"])
    )
    assert (found.of("t4"), found.of("rtx2080ti"), found.of("basement"), found.of("a100")) == (1, 2, 3, None)


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("dedline", ["deadline", "budget"], "did you mean 'deadline'?"),
        ("FIFO", ["fifo", "srtf"], "did you mean 'fifo'?"),
        ("val", ["Validation", "VAL1"], "did you mean 'VAL1'?"),
        ("xyz", ["b", "a"], "known: b, a"),
        ("xyz", [], "there are none"),
    ],
)
def test_suggestion_has_one_wording(name: str, known: list[str], said: str) -> None:
    assert suggestion(name, known) == said

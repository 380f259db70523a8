from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.cli.main import run
from coadapt.errors import CoadaptError, InputError
from coadapt.explain import log_watch, watch_log
from coadapt.prediction.training_log import LogReader

SAMPLES = Path(__file__).parents[1] / "prediction" / "log_samples"


def written(folder: Path, text: str) -> Path:
    path = folder / "train.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "option", "told"),
    [
        ("".join(f"step {n} loss 0.5 time 0.25s\n" for n in range(9)), "--total", {"total": 100.0}),
        ("".join(f"step {n}/100 loss 0.5\n" for n in range(9)), "--elapsed", {"elapsed_s": 60.0}),
        (
            "epochs=30\n"
            + "".join(f"[Epoch {n}][Batch 99], Speed: 640 samples/sec, loss=1.2\n" for n in range(4)),
            "--batch",
            {"batch": 128.0},
        ),
        (
            "num_epochs=30\n" + "".join(f"12:00:{n:02d} [Epoch 0][Batch {n}], loss=1.2\n" for n in range(9)),
            "--steps-per-epoch",
            {"steps_per_epoch": 500.0},
        ),
    ],
)
def test_the_missing_number_is_named_with_the_option_that_gives_it(
    tmp_path: Path, text: str, option: str, told: dict[str, float]
) -> None:
    log = written(tmp_path, text)
    found = watch_log(log, keep=False)
    assert (found.eta_s, found.missing) == (None, option)
    assert found.note is not None
    assert option in found.note
    assert watch_log(log, keep=False, **told).eta_s is not None


def test_batches_of_an_epoch_are_not_steps_of_the_run(tmp_path: Path) -> None:
    lines = ["Namespace(batch_size=128, epochs=10)"]
    for epoch in range(4):
        lines += [
            f"[Epoch {epoch}][Batch {batch}], Speed: 640.0 samples/sec, loss=1.2"
            for batch in range(9, 500, 10)
        ]
        lines.append(f"[Epoch {epoch}] Training cost: 100.0, loss=1.1")
    found = watch_log(written(tmp_path, "\n".join(lines) + "\n"), keep=False)
    assert (found.done, found.total, found.unit) == (4.0, 10.0, "epochs")
    assert found.eta_s == pytest.approx(600.0, rel=0.01)


def test_a_start_that_took_long_is_forgotten(tmp_path: Path) -> None:
    lines = ["step:0/6200 val_loss:10.9 train_time:0ms step_avg:nanms"]
    lines += [
        f"step:{n}/6200 train_loss:5.0 train_time:{74000 + 200 * n}ms step_avg:200ms" for n in range(1, 3100)
    ]
    found = watch_log(written(tmp_path, "\n".join(lines) + "\n"), keep=False)
    assert found.eta_s == pytest.approx(0.2 * 3101, rel=0.01)
    assert found.eta_high_s is not None
    assert found.eta_low_s is not None
    assert found.eta_high_s / found.eta_low_s < 1.1


def test_per_epoch_batch_counters_that_go_back_are_no_crash(tmp_path: Path) -> None:
    lines = [
        f"Epoch[{epoch}] Batch [{batch}]\tSpeed: {600 + epoch} samples/sec\taccuracy=0.5"
        for epoch in (0, 1, 2, 0, 1)
        for batch in range(20, 200, 20)
    ]
    found = watch_log(written(tmp_path, "\n".join(lines) + "\n"), keep=False, batch=32.0)
    assert found.unit == "epochs"


def test_a_large_log_is_parsed_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 200_000
    log = written(
        tmp_path,
        "".join(f"step {n}/{total} loss=0.25 lr=0.001 grad_norm=1.25 time 0.25s\n" for n in range(100_000)),
    )
    parsed = []
    read = LogReader.line

    def counted(self: LogReader, line: str, seen_s: float | None = None) -> object:
        parsed.append(len(line))
        return read(self, line, seen_s)

    monkeypatch.setattr(LogReader, "line", counted)
    found = watch_log(log, keep=False)
    assert found.done == 99_999
    assert found.eta_s == pytest.approx(0.25 * 100_001, rel=0.02)
    chunks = log.stat().st_size / log_watch._CHUNK
    assert sum(parsed) < log_watch.WHOLE + (2 * log_watch.EDGE + 100) * (chunks + 1) + log_watch._CHUNK


def test_a_line_without_an_end_is_not_kept_whole() -> None:
    source = log_watch._Source(log_watch.Told(), None)
    for _ in range(100):
        source.take(b"x" * 100_000)
    assert len(source._pending) <= log_watch._MOST_PENDING


def test_one_nul_byte_does_not_make_a_log_binary(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(
        b"\0".join([b"step 1/10 time 1s\n", b"step 2/10 time 1s\nstep 3/10 time 1s\nstep 4/10 time 1s\n"])
    )
    assert watch_log(log, keep=False).done == 4
    log.write_bytes(bytes(range(256)) * 8 + b"\0" * 64)
    with pytest.raises(InputError, match="binary"):
        watch_log(log, keep=False)


def test_an_event_file_is_watched(tmp_path: Path) -> None:
    found = watch_log(SAMPLES / "tensorboard.tfevents", keep=False, total=1000.0)
    assert (found.done, found.unit) == (190.0, "steps")
    assert found.eta_s == pytest.approx(405.0, rel=0.02)


def test_two_runs_in_one_file_count_as_the_last(tmp_path: Path) -> None:
    text = "".join(f"step {n}/100 loss 1 time 0.5s\n" for _ in range(2) for n in range(0, 61, 2))
    found = watch_log(written(tmp_path, text), keep=False)
    assert found.done == 60
    assert found.note == "the log holds 2 runs; this is the last"


def test_a_target_is_predicted_from_the_course_of_its_metric(tmp_path: Path) -> None:
    lines = [f"step {n}/1000 val_loss={2 + 8 / (1 + n / 50):.4f} time 1.0s" for n in range(10, 400, 10)]
    log = written(tmp_path, "\n".join(lines) + "\n")
    found = watch_log(log, keep=False, target="val_loss<=2.6").target
    assert found is not None
    assert found.eta_s == pytest.approx(617 - 390, rel=0.25)
    assert watch_log(log, keep=False, target="val_loss<=5").target.reached  # type: ignore[union-attr]
    other = watch_log(log, keep=False, target="wer<=5").target
    assert other is not None
    assert other.note == "the log has no metric wer; it has val_loss"


def test_the_command_takes_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(written(tmp_path, "".join(f"step {n}/100 loss {10 - n}\n" for n in range(9))))
    assert run(["watch", log, "--elapsed", "1m", "--target", "loss<=1"]) == 0
    out = capsys.readouterr().out
    assert "remaining" in out
    assert "loss<=1" in out
    assert run(["watch", log, "--target", "loss"]) == 2
    assert "is not valid" in capsys.readouterr().err


@given(st.binary(max_size=400))
@settings(deadline=None, max_examples=120)
def test_any_bytes_give_a_forecast_or_one_line(data: bytes) -> None:
    source = log_watch._Source(log_watch.Told(target="loss<=1"), None)
    source.take(b"Epoch 1/3 loss 2 time 1s\n" + data)
    source.end()
    try:
        source.check("log")
    except CoadaptError:
        return
    source.forecast().to_dict()

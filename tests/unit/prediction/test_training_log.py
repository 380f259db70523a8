from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.prediction.remaining.eta_estimate import eta, seconds_per_work
from coadapt.prediction.training_log import LogReader, parse, segments
from coadapt.prediction.training_log.reader import MAX_LINE


def folded(lines, seen=None):
    reader = LogReader()
    for number, line in enumerate(lines):
        reader.feed(line, None if seen is None else seen[number])
    found = reader.progress()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Epoch [3/90] Batch 10/390 loss 0.3 time 0.123",
            {"epoch": 3, "epochs": 90, "step": 10, "steps": 390, "time_s": 0.123},
        ),
        ("Epoch [3/90], Step [10/390], Loss: 0.31", {"epoch": 3, "epochs": 90, "step": 10, "steps": 390}),
        ("step 100/5000 loss=0.3", {"step": 100, "steps": 5000, "overall": True}),
        ("iter 100: loss 2.3, time 132.22ms, mfu 3.1%", {"step": 100, "step_s": 0.13222, "overall": True}),
        ("Epoch 3/90", {"epoch": 3, "epochs": 90, "step": None}),
        (
            "Epoch: [0][  10/5005]\tTime  0.123 ( 0.4)",
            {"epoch": 0, "step": 10, "steps": 5005, "step_s": 0.123},
        ),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.0", {"epoch": 1, "step": 640, "steps": 60000}),
        (
            "390/390 [==============================] - 12s 31ms/step - loss: 0.3",
            {"step": 390, "steps": 390, "elapsed_s": 12, "step_s": 0.031},
        ),
        ("390/390 ━━━━━━━━━━━━━━━━━━━━ 12s 31ms/step - accuracy: 0.9", {"step": 390, "elapsed_s": 12}),
        ("390/390 - 12s - loss: 0.3 - 12s/epoch - 31ms/step", {"step": 390, "elapsed_s": 12}),
        (
            "Epoch 2:  45%|####      | 176/390 [00:12<00:15, 14.1it/s, loss=1.23]",
            {"epoch": 2, "step": 176, "steps": 390, "elapsed_s": 12},
        ),
        (
            " 10%|█         | 500/5000 [1:01:00<09:00,  8.3it/s]",
            {"step": 500, "steps": 5000, "elapsed_s": 3660},
        ),
        ("Validation: 50%|##  | 5/10 [00:01<00:01]", {"validation": True}),
        ("{'loss': 1.2, 'learning_rate': 5e-05, 'epoch': 0.5}", {"epoch": 0.5, "step": None}),
        ('COADAPT {"progress": 0.25, "time": 12.5}', {"share": 0.25, "stamp_s": 12.5}),
    ],
)
def test_parse_understands(line, expected):
    reading = parse(line)
    assert reading is not None
    assert {name: getattr(reading, name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello world",
        "COADAPT nonsense",
        "COADAPT [1]",
        'COADAPT {"progress": 7}',
        "{'epoch'",
        "{1: [" + "(" * 500,
        "Downloading model.safetensors",
        "x" * (MAX_LINE + 1),
        "step " + "9" * 3000,
    ],
)
def test_parse_has_nothing_to_say_about_other_lines(line):
    assert parse(line) is None or parse(line).step is None or parse(line).step < 10**12  # type: ignore[union-attr, operator]
    if not line.startswith("step"):
        assert parse(line) is None


@given(st.text(max_size=300))
@settings(deadline=None, max_examples=150)
def test_parse_and_read_take_any_text(text):
    for part in segments(text):
        parse(part)
    reader = LogReader()
    reader.feed(text)
    reader.progress()


def test_parse_reads_metrics_and_timestamps():
    reading = parse("2024-05-01 12:00:03,250 INFO step 200/1000 loss 0.33 val_acc=0.9 lr: 1e-4")
    assert reading is not None
    assert reading.metrics == {"loss": 0.33, "val_acc": 0.9, "lr": 1e-4}
    assert reading.stamp_s == datetime(2024, 5, 1, 12, 0, 3, 250000, tzinfo=UTC).timestamp()
    nan = parse("step 3/10 loss=nan")
    assert nan is not None
    assert math.isnan(nan.metrics["loss"])


def test_read_counts_batches_over_epochs_and_takes_time_per_batch():
    state = folded(f"Epoch [{e}/5] Batch {b}/100 time 0.5" for e in (1, 2) for b in range(10, 101, 10))
    assert (state.unit, state.done, state.total) == ("batches", 200, 500)
    assert state.clock == "time per step in the log"
    left = eta(state.pace, 300)
    assert left is not None
    assert left.value == pytest.approx(150, rel=0.01)


def test_read_follows_a_bar_that_overwrites_itself_and_counts_epochs_from_zero():
    bars = [
        f"\rEpoch {e}/3: 0%|#| {b}/100 [00:{b // 10:02d}<00:10, 10it/s]"
        for e in (0, 1)
        for b in range(0, 101, 10)
    ]
    state = folded(["".join(bars)])
    assert (state.done, state.total) == (200, 400)  # epochs 0 to 3
    found = seconds_per_work(state.pace)
    assert found is not None
    assert found.value == pytest.approx(0.1, rel=0.02)


def test_read_understands_keras_with_a_line_per_epoch():
    lines = []
    for epoch in range(1, 5):
        lines += [f"Epoch {epoch}/10", "390/390 [====] - 12s 31ms/step - loss: 0.3"]
    state = folded(lines)
    assert (state.done, state.total) == (1560, 3900)
    found = eta(state.pace, 2340)
    assert found is not None
    assert found.value == pytest.approx(72, rel=0.02)


def test_read_understands_the_bar_and_the_dicts_of_hugging_face():
    lines = []
    for step in range(0, 1001, 10):
        lines.append(f" 0%|  | {step}/5000 [00:{step // 20:02d}<09:00, 20it/s]")
        if step % 100 == 0:
            lines.append(f"{{'loss': 1.2, 'epoch': {step / 1000}}}")
    state = folded(lines)
    assert (state.done, state.total) == (1000, 5000)
    found = seconds_per_work(state.pace)
    assert found is not None
    assert found.value == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("loss", ["nan", "-inf", "'nan'", '"nan"'])
def test_a_loss_that_is_not_a_number_is_progress_and_is_told(loss):
    reading = parse(
        f"{{'loss': {loss}, 'grad_norm': nan, 'learning_rate': 5e-05, 'note': 'a, nan, b', 'epoch': 0.5}}"
    )
    assert reading is not None
    assert (reading.form, reading.epoch) == ("dict lines", 0.5)
    assert not math.isfinite(reading.metrics["loss"])
    assert math.isnan(reading.metrics["grad_norm"])
    assert reading.metrics["learning_rate"] == 5e-05


@pytest.mark.parametrize("line", ['{"loss": NaN, "epoch": 0.5}', '{"loss": nan, "epoch": 0.5}'])
def test_a_loss_that_is_not_a_number_is_read_from_json(line):
    reading = parse(line)
    assert reading is not None
    assert math.isnan(reading.metrics["loss"])


def test_our_own_line_keeps_a_metric_that_is_not_a_number():
    reading = parse('COADAPT {"progress": 0.5, "metrics": {"loss": NaN}}')
    assert reading is not None
    assert math.isnan(reading.metrics["loss"])


def test_an_epoch_that_is_not_a_number_is_no_progress():
    reading = parse("{'loss': 1.0, 'epoch': nan}")
    assert reading is None or reading.epoch is None


@pytest.mark.parametrize("total", [10**12, 5 * 10**13, 10**17])
def test_a_long_total_is_read_whole(total):
    for line in (f"step 100/{total} loss=0.3", f" 0%|  | 100/{total} [00:10<09:00, 20it/s]"):
        reading = parse(line)
        assert reading is not None
        assert (reading.step, reading.steps) == (100, total)


def test_a_total_beyond_all_counting_is_not_cut():
    reading = parse(f"step 100/{10**25}")
    assert reading is not None
    assert (reading.step, reading.steps) == (100, None)
    assert parse(f"step {10**25}") is None


def test_read_prefers_timestamps_and_crosses_midnight():
    lines = [
        f"{h:02d}:{m:02d}:00 step {n}/100 time 0.001"
        for n, (h, m) in enumerate([(23, 58), (23, 59), (0, 0), (0, 1), (0, 2)])
    ]
    state = folded(lines)
    assert state.clock == "timestamps"
    found = seconds_per_work(state.pace)
    assert found is not None
    assert found.value == pytest.approx(60)


def test_read_takes_the_arrival_of_lines_where_the_log_tells_no_time():
    lines = [f"step {n}/100" for n in range(10)]
    assert seconds_per_work(folded(lines).pace) is None
    found = seconds_per_work(folded(lines, seen=[2.0 * n for n in range(10)]).pace)
    assert found is not None
    assert found.value == pytest.approx(2.0)


def test_read_takes_validation_for_no_progress():
    state = folded(["step 10/100", "Validation: 100%|##| 10/10 [00:01<00:00]", "Test: [0][5/10] Time 0.1"])
    assert (state.done, state.total) == (10, 100)


def test_read_survives_a_restart_from_an_earlier_step():
    state = folded(
        [f"step {n}/100" for n in (*range(50), *range(30, 60))], seen=[float(n) for n in range(80)]
    )
    assert state.done == 59
    assert state.pace.setbacks == 1


def test_read_of_our_own_lines_is_exact():
    state = folded(f'COADAPT {{"progress": {n / 100}, "time": {n}.0}}' for n in range(51))
    found = eta(state.pace, 0.5)
    assert (state.unit, state.done, state.total) == ("share", 0.5, 1.0)
    assert found is not None
    assert found.value == pytest.approx(50, rel=0.01)

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.executors.node.stdout_reports import MOST_PER_S, Patterns, Readings
from coadapt.model import Measurement, Placement, Slot
from coadapt.model.measurement import Configuration
from coadapt.prediction.training_log import LogReader
from coadapt.wire.agent import Report, to_line
from coadapt.wire.node_messages import Launch

ON_TWO = Placement(
    slots=(Slot(node="n0", replicas=1, gpu_type="t4"), Slot(node="n1", replicas=1, gpu_type="t4"))
)
CONFIG = Configuration(nodes=2, replicas=2, atomic_batch=32, gpu_type="t4")


def reading(*lines: str, launch: Launch | None = None) -> list[Measurement]:
    return Readings(launch or Launch(command=("x",))).read(lines, ON_TWO, 0.0)


def test_report_of_the_agent_is_taken_as_it_is_and_once() -> None:
    measured = Measurement(config=CONFIG, count=9, step_s=0.1, work=900.0)
    readings = Readings(Launch(command=("x",)))
    line = to_line(Report(job="a", attempt=1, number=3, measurements=(measured, measured)))
    assert readings.read([line, line], ON_TWO, 0.0) == [measured, measured]
    older = to_line(Report(job="a", attempt=1, number=2, measurements=(measured,)))
    assert readings.read([older, line], ON_TWO, 1.0) == []


def test_line_written_by_hand_is_completed_by_the_placement() -> None:
    line = 'COADAPT {"epoch": 3, "step_time": 0.1, "batch": 64, "val_acc": 0.9, "note": "x"}'
    assert reading(line) == [
        Measurement(config=CONFIG, count=1, step_s=0.1, epoch=3.0, metrics={"val_acc": 0.9})
    ]


def test_time_without_a_batch_size_is_no_measurement_of_speed() -> None:
    (found,) = reading('COADAPT {"epoch": 1, "step_time": 0.1}')
    assert (found.count, found.step_s, found.epoch) == (0, 0.0, 1.0)
    (found,) = reading(
        'COADAPT {"epoch": 1, "step_time": 0.1}', launch=Launch(command=("x",), total_batch=64)
    )
    assert (found.config, found.count, found.step_s) == (CONFIG, 1, 0.1)


def test_steps_between_lines_are_what_a_time_is_the_mean_of() -> None:
    lines = [f'COADAPT {{"step": {step}, "step_time": 0.1, "batch": 64}}' for step in (10, 30)]
    assert [found.count for found in reading(*lines)] == [1, 20]


def test_progress_becomes_epochs_where_the_job_has_some() -> None:
    launch = Launch(command=("x",), epochs=20.0)
    said = ['{"progress": 0.25}', '{"step": 10, "steps": 100}', '{"progress": 7}']
    assert [found.epoch for found in reading(*(f"COADAPT {s}" for s in said), launch=launch)] == [5.0, 2.0]
    (alone,) = reading('COADAPT {"progress": 0.25}')
    assert (alone.epoch, alone.share) == (None, 0.25)


def test_share_is_told_also_where_the_specification_declares_no_epochs() -> None:
    (found,) = reading('COADAPT {"epoch": 1, "epochs": 4}')
    assert (found.epoch, found.share) == (1.0, 0.25)
    (found,) = reading('COADAPT {"epoch": 5, "epochs": 4}')
    assert (found.epoch, found.share) == (5.0, None)


def test_agent_says_that_it_can_be_resized_in_place() -> None:
    readings = Readings(Launch(command=("x",)))
    assert not readings.in_place
    assert readings.read(['COADAPT {"in_place": true}'], ON_TWO, 0.0) == []
    assert readings.in_place


def test_garbage_is_passed_over() -> None:
    deep = "[" * 5000
    wrong = [
        *("COADAPT", "COADAPT ", "COADAPT {", "COADAPT []", "COADAPT 7", "COADAPT {}", f"COADAPT {deep}"),
        'COADAPT {"epoch": "three"}',
        'COADAPT {"epoch": 1e999}',
        'COADAPT {"val_acc": true}',
        'COADAPT {"measurements": 7}',
        'COADAPT {"measurements": [{"config": {"nodes": 0, "replicas": 1, "atomic_batch": 1}}]}',
        'COADAPT {"measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 1}, "step_s": -1}]}',
        'COADAPT {"\\u0000": 1}',
        "val_acc 0.9",
    ]
    assert reading(*wrong) == []


@given(
    st.text(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda x: st.dictionaries(
            st.sampled_from(["epoch", "step", "batch", "metrics", "measurements", "step_time", "count", "x"]),
            x,
        ),
    ),
)
def test_nothing_a_job_prints_breaks_the_reader(text: str, said: object) -> None:
    for found in reading(
        f"COADAPT {text}",
        f"COADAPT {json.dumps(said)}",
        text,
        launch=Launch(command=("x",), epochs=2.0, metrics={"m": r"(\S+)"}),
    ):
        assert found.config.atomic_batch >= 1


def test_job_that_says_too_much_is_heard_in_part() -> None:
    readings = Readings(Launch(command=("x",)))
    lines = [f'COADAPT {{"epoch": {i}}}' for i in range(1000)]
    found = readings.read(lines, ON_TWO, 0.0)
    assert len(found) == MOST_PER_S
    assert found[-1].epoch == 999.0  # the newest
    assert readings.read(lines, ON_TWO, 0.5) == []
    assert len(readings.read(lines, ON_TWO, 1.1)) == MOST_PER_S


def test_lines_that_metrics_match_are_measurements() -> None:
    launch = Launch(command=("x",), metrics={"val_acc": r"val acc: ([\d.]+)", "loss": r"loss (\S+)"})
    (first, second) = reading("val acc: 0.91 loss 0.3", "nothing", "loss nan", "loss 2", launch=launch)
    assert (first.metrics, first.count) == ({"val_acc": 0.91, "loss": 0.3}, 0)
    assert second.metrics == {"loss": 2.0}


def test_pattern_that_never_ends_is_given_up_and_the_others_go_on() -> None:
    patterns = Patterns({"evil": r"^(a+)+$", "good": r"a=(\d+)", "none": r"(", "groupless": "a"})
    assert patterns.match("a" * 1000 + "! a=3") == {"good": 3.0}
    assert patterns.match("a" * 1000 + "! a=4") == {"good": 4.0}


def test_the_log_of_a_program_without_reports_tells_its_share() -> None:
    readings = Readings(Launch(command=("x",)))
    lines = [f"Epoch 1/2 Batch {n}/100 loss 0.5" for n in range(0, 101, 10)]
    (found,) = readings.read(lines, ON_TWO, 0.0)
    assert (found.share, found.count) == (0.5, 0)
    assert (
        readings.read(
            ["Epoch 1/2 Batch 100/100 loss 0.5", "Validation: 50%|## | 5/10 [00:01<00:01]"], ON_TWO, 1.0
        )
        == []
    )
    (own,) = readings.read(['COADAPT {"progress": 0.25}'], ON_TWO, 2.0)
    assert own.share == 0.25
    # a program that reports itself knows better than its log
    assert readings.read(["Epoch 2/2 Batch 100/100 loss 0.5"], ON_TWO, 3.0) == []


def test_batch_size_of_a_program_without_reports_is_the_one_it_was_given() -> None:
    launch = Launch(command=("x",), total_batch=64, metrics={"val_acc": r"val acc: ([\d.]+)"})
    assert [each.config for each in reading("Epoch 1/2 loss 0.3", launch=launch)] == [CONFIG]
    assert [each.config for each in reading("val acc: 0.5", launch=launch)] == [CONFIG]


def test_a_flood_of_lines_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    read = LogReader.feed

    def counted(self: LogReader, text: str, seen_s: float | None = None) -> None:
        parsed.append(text)
        read(self, text, seen_s)

    monkeypatch.setattr(LogReader, "feed", counted)
    (found,) = Readings(Launch(command=("x",))).read(
        (f"step {n}/20000 loss 1" for n in range(10_001)), ON_TWO, 0.0
    )
    assert found.share == 0.5
    assert len(parsed) <= 100

"""One rule for what a job reports, whichever way it reports it."""

from __future__ import annotations

import json

import msgspec
import pytest

from coadapt.errors import InputError
from coadapt.executors.node.protocol import Launch
from coadapt.executors.node.stdout_reports import Readings
from coadapt.model import Configuration, Measurement, Placement, Slot
from coadapt.model.measurement import ReportLimits, accepted_part, check_measurement, reportable
from coadapt.wire.agent import Report, check_report, to_line

CONFIG = Configuration(nodes=1, replicas=1, atomic_batch=32)
HERE = Placement(slots=(Slot(node="n0", replicas=1),))
RIGHT = Measurement(config=CONFIG, step_s=0.2, sync_s=0.1, grad_sqr=0.0, grad_var=0.5, work=10.0)


def taken(measurement: Measurement) -> tuple[bool, bool]:
    """Whether it is taken over HTTP, and on standard output."""
    report = Report(job="a", attempt=1, number=1, measurements=(measurement,))
    try:
        check_report(report)
        by_http = True
    except InputError:
        by_http = False
    return by_http, bool(Readings(Launch(command=("x",))).read([to_line(report)], HERE, 0.0))


def test_what_is_right_is_taken_both_ways() -> None:
    assert taken(RIGHT) == (True, True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sync_s": 0.3}, "sync_s 0.3 is a part of step_s 0.2"),  # only standard output took it
        ({"step_s": 1e8}, "step_s is 100000000.0"),  # only standard output took it
        ({"grad_sqr": -1.0}, "grad_sqr is -1.0"),  # only HTTP took it
        ({"grad_var": -1e-9}, "grad_var"),
        ({"grad_var": None}, "come together"),
        ({"count": 1 << 32}, "count"),
        ({"step_s": 1e-300, "sync_s": 0.0}, "step_s is 1e-300; it must be 0 or between 1e-06"),
        ({"grad_sqr": 1e-300}, "grad_sqr is 1e-300; it must be 0 or between 1e-15"),
        ({"grad_var": 1e30}, "grad_var is 1e\\+30"),
        ({"step_s": float("nan")}, "step_s is nan"),
        (
            {"config": Configuration(nodes=1, replicas=1 << 31, atomic_batch=1 << 31, accumulation=1 << 31)},
            "below 2\\^53",
        ),
        (
            {"config": Configuration(nodes=1, replicas=1, atomic_batch=1 << 31), "count": 1 << 30},
            "below 2\\^53",
        ),
        ({"metrics": {"a\n": 1.0}}, "printable"),
        ({"overheads_s": {"setup": 1e8}}, "setup is 100000000.0"),
        ({"share": 5e-324}, "share is 5e-324"),
    ],
)
def test_what_cannot_be_is_refused_both_ways(wrong: dict[str, object], said: str) -> None:
    measurement = msgspec.structs.replace(RIGHT, **wrong)
    assert taken(measurement) == (False, False)
    with pytest.raises(InputError, match=said):
        check_measurement(measurement)


def test_line_written_by_hand_obeys_the_same_rule() -> None:
    def read(**said: float) -> list[Measurement]:
        return Readings(Launch(command=("x",))).read([f"COADAPT {json.dumps(said)}"], HERE, 0.0)

    assert read(epoch=1, step_time=0.1, batch=64)
    assert read(epoch=1, step_time=1e8, batch=64) == []
    assert read(work=1e16) == []


@pytest.mark.parametrize(
    ("fields", "limits", "said"),
    [
        ({"atomic_batch": 101}, ReportLimits(data_size=100), "at most the 100 examples"),
        ({"replicas": 5}, ReportLimits(gpus=4), "the cluster has 4 GPUs"),
    ],
)
def test_what_the_receiver_knows_bounds_a_report(
    fields: dict[str, int], limits: ReportLimits, said: str
) -> None:
    config = msgspec.structs.replace(CONFIG, **fields)
    measurement = msgspec.structs.replace(RIGHT, config=config)
    check_measurement(measurement)
    with pytest.raises(InputError, match=said):
        check_measurement(measurement, limits)


def test_reader_of_standard_output_knows_the_size_of_the_data() -> None:
    line = to_line(Report(attempt=1, measurements=(RIGHT,)))
    assert Readings(Launch(command=("x",), data_size=32)).read([line], HERE, 0.0)
    assert not Readings(Launch(command=("x",), data_size=31)).read([line], HERE, 0.0)


def test_old_record_is_folded_without_the_parts_that_would_overflow() -> None:
    assert accepted_part(RIGHT) is RIGHT
    short = accepted_part(msgspec.structs.replace(RIGHT, step_s=1e-300, sync_s=0.0))
    assert short is not None
    assert (short.step_s, short.work) == (0.0, 10.0)
    steep = accepted_part(msgspec.structs.replace(RIGHT, grad_sqr=1e-300, grad_var=1e30))
    assert steep is not None
    assert (steep.grad_sqr, steep.grad_var, steep.step_s) == (None, None, 0.2)
    slow = accepted_part(msgspec.structs.replace(RIGHT, overheads_s={"setup": 1e300}, share=-1.0, work=1e300))
    assert slow is not None
    assert (slow.overheads_s, slow.share, slow.work) == ({}, None, None)
    huge = Configuration(nodes=1, replicas=1 << 31, atomic_batch=1 << 31, accumulation=1 << 31)
    assert accepted_part(msgspec.structs.replace(RIGHT, config=huge)) is None


def test_agent_leaves_out_what_a_receiver_would_refuse() -> None:
    tiny = msgspec.structs.replace(RIGHT, grad_sqr=1e-20, step_s=1e-9, sync_s=0.0)
    with pytest.raises(InputError):
        check_measurement(tiny)
    sent = reportable(tiny)
    check_measurement(sent)
    assert (sent.grad_sqr, sent.step_s, sent.work) == (None, 0.0, 10.0)
    assert reportable(RIGHT) is RIGHT

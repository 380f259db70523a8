"""One rule for what a job reports, whichever way it reports it."""

from __future__ import annotations

import json

import msgspec
import pytest

from coadapt.errors import InputError
from coadapt.executors.node.protocol import Launch
from coadapt.executors.node.stdout_reports import Readings
from coadapt.model import Configuration, Measurement, Placement, Slot
from coadapt.model.measurement import check_measurement
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
        ({"metrics": {"a\n": 1.0}}, "printable"),
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

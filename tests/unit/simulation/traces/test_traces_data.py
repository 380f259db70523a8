"""The real traces, where they are."""

from __future__ import annotations

import pytest
from trace_samples import a_profiled_spec

from coadapt.simulation.traces import describe, open_trace
from data import data_dir

DATA = data_dir()
pytestmark = [pytest.mark.data, pytest.mark.skipif(DATA is None, reason="no measurements: set COADAPT_DATA")]


def test_philly_has_its_82247_jobs():
    about = describe(open_trace(DATA / "philly" / "philly.csv"))
    assert about["jobs"] == 82247
    assert about["sizes"][1] == 76627
    assert about["teams"] == 15
    assert about["started_at"] == 1504521041  # 2017-09-04 10:30:41
    assert about["gpu_hours"] == pytest.approx(978078.47, abs=0.01)


def test_pollux_workloads_read_as_written():
    about = describe(open_trace(DATA / "pollux" / "workloads" / "tuned-1.0x-1.csv", profiles=a_profiled_spec))
    assert about["jobs"] == 160
    assert about["first_submit_s"] == 107
    assert about["profiles"] == {
        "bert": 7,
        "cifar10": 66,
        "deepspeech2": 12,
        "imagenet": 4,
        "ncf": 68,
        "yolov3": 3,
    }

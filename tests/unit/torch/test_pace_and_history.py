"""A paced device keeps its pace and says when it cannot; a history decides what an earlier run decided."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.errors import InputError
from coadapt.prediction.step_time.pollux import StepTimeParams
from coadapt.torch.elastic.process_group import Place
from coadapt.torch.training import decision_history
from coadapt.torch.training.decision_history import (
    Decision,
    DecisionHistory,
)
from coadapt.torch.training.paced_device import (
    PaceFile,
    make,
)
from coadapt.torch.training.step_plan import (
    even_split,
    plan,
    work_of,
)


def test_a_pass_lasts_as_long_as_the_profile_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    pace = make(PaceFile(seconds={"8": 0.1, "64": 0.4}), Place())
    step = plan(even_split(8, 1, 8), 0, 8)
    assert pace.sleep(0.03, step, last=True) == pytest.approx(0.1)
    assert slept == [pytest.approx(0.07)]
    assert pace.seconds(64, last=True) == pytest.approx(0.4)
    assert 0.1 < pace.seconds(20, last=True) < 0.4


def test_who_cannot_keep_the_pace_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    pace = make(PaceFile(seconds={"8": 0.001}), Place())
    step = plan(even_split(8, 1, 8), 0, 8)
    for _ in range(50):
        assert pace.sleep(0.5, step, last=True) == 0.5
    assert caplog.text.count("slower than the profile") == 1


def test_pace_by_fitted_parameters_knows_replicas() -> None:
    params = StepTimeParams(
        alpha_c=0.1, beta_c=0.01, alpha_n=0.2, beta_n=0.01, alpha_r=0.05, beta_r=0.01, gamma=1.5
    )
    alone, four = make(PaceFile(params=params), Place()), make(PaceFile(params=params), Place(0, 4, 0, 4))
    assert alone.seconds(10, last=True) == pytest.approx(0.2, rel=1e-3)
    assert four.seconds(10, last=True) > four.seconds(10, last=False)
    alone.moved(Place(0, 4, 0, 4))
    assert alone.seconds(10, last=True) == four.seconds(10, last=True)


def test_what_the_pace_adds_is_computing_but_for_the_synchronisation() -> None:
    params = StepTimeParams(
        alpha_c=0.1, beta_c=0.01, alpha_n=0.2, beta_n=0.01, alpha_r=0.05, beta_r=0.01, gamma=1.5
    )
    pace = make(PaceFile(params=params), Place(0, 2, 0, 2))
    step = plan(even_split(20, 2, 10), 0, 20)
    assert pace.computing(0.001, step) == pytest.approx(pace.seconds(10, last=False))
    assert pace.computing(0.001, step) == pytest.approx(0.2, rel=1e-3)
    assert pace.computing(0.7, step) == 0.7


def test_history_is_written_and_read_back(tmp_path: Path) -> None:
    entries = [
        Decision(step=s, replicas=1, batch=b, atomic=8, grad=(1.0, 2.0))
        for s, b in ((0, 8), (5, 16), (9, 32))
    ]
    decision_history.save(tmp_path / "h", entries)
    assert decision_history.load(tmp_path / "h") == entries
    history = DecisionHistory(entries)
    assert [history.recorded(step).batch for step in (0, 4, 5, 8, 9, 99)] == [8, 8, 16, 16, 32, 32]
    for text, message in (("", "empty"), ("{}", "is not the schedule")):
        (tmp_path / "h").write_text(text)
        with pytest.raises(InputError, match=message):
            decision_history.load(tmp_path / "h")


def test_statistics_come_into_effect_when_they_matter() -> None:
    history = DecisionHistory()
    history.add(Decision(step=0, replicas=1, batch=64, atomic=64, grad=(1.0, 1.0)))
    assert not history.stale((1.01, 1.0), 4.0)
    assert history.stale((2.0, 1.0), 4.0)
    assert not history.stale((2.0, 1.0), 1.0)
    history.add(Decision(step=0, replicas=2, batch=64, atomic=32))
    assert [entry.replicas for entry in history.entries] == [2]


def test_a_pass_at_m0_is_worth_all_its_examples_and_larger_batches_less() -> None:
    assert work_of(32, 32, (1.0, 0.0)) == 32
    assert work_of(7, 32, (1.0, 0.0)) == 7
    assert work_of(64, 32, (1.0, 0.0)) == 32
    assert work_of(64, 32, (0.0, 1.0)) == 64
    assert 32 < work_of(64, 32, (1.0, 1.0)) < 64

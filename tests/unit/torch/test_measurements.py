"""TensorBoard: what is written, by whom, and what happens without it."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from coadapt import torch as coadapt  # noqa: E402
from coadapt.errors import InputError  # noqa: E402


class Writer:
    """The part of a SummaryWriter that is needed."""

    def __init__(self) -> None:
        self.said: dict[str, list[tuple[int, float]]] = {}
        self.flushed = self.closed = False

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.said.setdefault(name, []).append((step, value))

    def flush(self) -> None:
        self.flushed = True

    def close(self) -> None:
        self.closed = True


def _train(**options: Any) -> Any:
    job = coadapt.init(batch="fixed", sample_every=1, **options)
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = job.loader(TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,))), batch_size=8)
    for epoch in job.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        job.report(val_acc=0.5 + epoch / 10)
    return job


def test_a_writer_is_told_what_was_decided_measured_and_reported() -> None:
    writer = Writer()
    job = _train(tensorboard=writer)
    assert writer.said["coadapt/batch"][-1] == (10, 8.0)
    assert writer.said["coadapt/epoch"] == [(5, 1.0), (10, 2.0)]
    assert writer.said["coadapt/rate_factor"][-1][1] == 1.0
    assert writer.said["coadapt/noise_scale"][-1][1] == pytest.approx(job.noise_scale)
    assert writer.said["coadapt/step_s"][-1][1] > 0
    assert writer.said["val_acc"] == [(5, 0.5), (10, 0.6)]
    assert writer.flushed
    assert not writer.closed, "it is the script's own"


def test_a_directory_gets_an_event_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _train(tensorboard=tmp_path / "board")
    found = EventAccumulator(str(tmp_path / "board"))
    found.Reload()
    assert [(each.step, round(each.value, 3)) for each in found.Scalars("val_acc")] == [(5, 0.5), (10, 0.6)]


def test_what_is_no_writer_is_refused() -> None:
    with pytest.raises(InputError, match="a directory, or a writer with add_scalar"):
        coadapt.init(tensorboard=5)


def test_without_the_package_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            raise ImportError("No module named 'tensorboard'")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="pip install tensorboard"):
        coadapt.init(tensorboard=tmp_path)

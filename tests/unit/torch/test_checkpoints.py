"""Checkpoints: whole or not at all, whatever happens to the disk."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from coadapt import torch as coadapt  # noqa: E402
from coadapt.errors import (  # noqa: E402
    CoadaptError,
    InputError,
)
from coadapt.torch.elastic.checkpoints import Checkpoints  # noqa: E402
from coadapt.torch.elastic.notices import Notice  # noqa: E402


def _kept(directory: Path, **options: float) -> Checkpoints:
    kept = Checkpoints(directory, **options)  # type: ignore[arg-type]
    kept.claim()
    return kept


def test_the_latest_comes_back_and_the_last_few_are_kept(tmp_path: Path) -> None:
    kept = _kept(tmp_path, keep=2)
    for step in (1, 2, 30):
        kept.save(step, {"step": step, "w": torch.full((3,), float(step))})
    kept.save_in_background(31, {"step": 31, "w": torch.ones(2)})
    kept.wait()
    assert [path.name for path in kept.files()] == ["step-000000000030.ckpt", "step-000000000031.ckpt"]
    found = _kept(tmp_path).latest()
    assert found is not None
    assert found["step"] == 31
    assert torch.equal(found["w"], torch.ones(2))


def test_a_disk_budget_keeps_at_least_the_newest(tmp_path: Path) -> None:
    kept = _kept(tmp_path, keep=5, budget_bytes=1)
    for step in range(3):
        kept.save(step, {"step": step})
    assert len(kept.files()) == 1


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "head"])
def test_a_damaged_file_is_named_and_the_one_before_is_used(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = _kept(tmp_path)
    kept.save(1, {"step": 1})
    kept.save(2, {"step": 2})
    newest = kept.files()[-1]
    data = bytearray(newest.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    newest.write_bytes({"cut": data[:-9], "flip": data, "empty": b"", "head": b"x" + data[1:]}[damage])
    found = kept.latest()
    assert found == {"step": 1}
    assert "step-000000000002.ckpt is damaged" in caplog.text
    kept.files()[0].write_bytes(b"")
    assert kept.latest() is None


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path: Path) -> None:
    kept = _kept(tmp_path)
    kept.save(1, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(CoadaptError, match="cannot save checkpoint"):
            kept.save(2, {"step": 2, "w": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept.latest() == {"step": 1}
    assert not list(tmp_path.glob("*.tmp"))


def test_a_failure_in_the_background_is_told_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = _kept(tmp_path)
    kept.save_in_background(1, {"step": lambda: None})
    kept.wait()
    assert "training continues" in caplog.text
    kept.save(2, {"step": 2})
    assert kept.latest() == {"step": 2}


def test_an_attempt_that_was_replaced_may_neither_commit_nor_begin(tmp_path: Path) -> None:
    old = _kept(tmp_path, attempt=3)
    old.save(1, {"by": 3})
    _kept(tmp_path, attempt=4).save(2, {"by": 4})
    with pytest.raises(CoadaptError, match="attempt 4 has replaced attempt 3"):
        old.save(9, {"by": 3})
    with pytest.raises(InputError, match="attempt 4 has replaced attempt 3"):
        _kept(tmp_path, attempt=3)
    assert _kept(tmp_path, attempt=4).latest() == {"by": 4}


def test_a_directory_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot create the checkpoint directory"):
        _kept(tmp_path / "file" / "kept")
    with pytest.raises(InputError, match="at least 1"):
        Checkpoints(tmp_path, keep=0)


def test_a_stop_whose_state_cannot_be_saved_does_not_claim_that_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice may have come by the store: then no signal was seen here, and the work is lost all the same."""
    job = coadapt.init(batch="fixed", checkpoints=tmp_path)
    model = nn.Linear(2, 1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = job.loader(torch.utils.data.TensorDataset(torch.zeros(8, 2)), batch_size=4)

    def full(step: int, state: object) -> None:
        raise CoadaptError("cannot save: no space left")

    monkeypatch.setattr(job._loop.coordinator.checkpoints, "save", full)

    def train() -> None:
        for _ in job.epochs(1):
            for (x,) in loader:
                model(x).mean().backward()
                job._loop.coordinator.notices.request(Notice(kind="stop"))
                optimizer.step()

    with pytest.raises(CoadaptError, match="no space left; work since the last checkpoint is lost"):
        train()

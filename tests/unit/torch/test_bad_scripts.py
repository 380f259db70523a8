"""What a script can get wrong, each told in one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    TensorDataset,
)

from coadapt import torch as coadapt  # noqa: E402
from coadapt.errors import InputError  # noqa: E402
from coadapt.torch.batches import Fixed  # noqa: E402
from coadapt.torch.script_options import check_model  # noqa: E402

DATA = TensorDataset(torch.randn(40, 4), torch.zeros(40, dtype=torch.long))


def _job(**options: Any) -> tuple[Any, Any, Any]:
    job = coadapt.init(**options)
    model = nn.Linear(4, 2)
    return (job, *job.prepare(model, torch.optim.SGD(model.parameters(), 0.1)))


def _frozen() -> None:
    model = nn.Linear(4, 2).requires_grad_(False)
    coadapt.init().prepare(model, torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1))


def _foreign_optimizer() -> None:
    coadapt.init().prepare(nn.Linear(4, 2), torch.optim.SGD(nn.Linear(4, 2).parameters(), 0.1))


def _extra_parameter() -> None:
    model = nn.Linear(4, 2)
    coadapt.init().prepare(model, torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(1))], 0.1))


def _foreign_loader() -> None:
    job, model, optimizer = _job()
    job.loader(DATA, batch_size=8)
    for _ in job.epochs(1):
        for x, y in DataLoader(DATA, batch_size=8):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def _without_epochs() -> None:
    job, _, _ = _job()
    next(iter(job.loader(DATA, batch_size=8)))


def _no_step() -> None:
    job, model, _ = _job()
    loader = job.loader(DATA, batch_size=8)
    for _ in job.epochs(1):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()


def _no_backward() -> None:
    job, _, optimizer = _job()
    loader = job.loader(DATA, batch_size=8)
    for _ in job.epochs(1):
        for _ in loader:
            optimizer.step()


def _past_the_wrapper() -> None:
    job, model, optimizer = _job()
    loader = job.loader(DATA, batch_size=8)
    for _ in job.epochs(1):
        for x, y in loader:
            nn.functional.cross_entropy(model.module(x), y).backward()
            optimizer.step()


def _twice_backward() -> None:
    job, model, optimizer = _job()
    loader = job.loader(DATA, batch_size=8)
    for _ in job.epochs(1):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()


def _closure() -> None:
    job, _, optimizer = _job()
    job.loader(DATA, batch_size=8)
    optimizer.step(lambda: 0.0)


def _sparse() -> None:
    job = coadapt.init()
    model = nn.Sequential(nn.Embedding(10, 2, sparse=True), nn.Flatten(), nn.Linear(8, 2))
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = job.loader(TensorDataset(torch.zeros(40, 4, dtype=torch.long), DATA[:][1]), batch_size=8)
    for _ in job.epochs(1):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


CASES = {
    "nothing to train": _frozen,
    "another model": _foreign_optimizer,
    "does not have": _extra_parameter,
    r"optimizer.step\(\) outside the loop over job.loader": _foreign_loader,
    "inside `for epoch in job.epochs": _without_epochs,
    r"no optimizer.step\(\) since": _no_step,
    "no backward pass went through the prepared model": _no_backward,
    "the model that job.prepare": _past_the_wrapper,
    "two backward passes": _twice_backward,
    "closure": _closure,
    "sparse gradients": _sparse,
}


@pytest.mark.parametrize("message", CASES)
def test_a_script_that_cannot_work_is_told_why(message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        CASES[message]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 8.5}, "batch_size=8.5"),
        ({"batch_size": 64, "max_batch_size": 32}, "excludes the batch size to start with, 64"),
        ({"batch_size": 8, "per_gpu": (16, 32)}, "excludes the batch size to start with"),
        ({"batch_size": 8, "per_gpu": (8, 4)}, "smaller number comes first"),
        ({"batch_size": 8, "batch_sampler": [[1]]}, "no option 'batch_sampler'"),
        ({"batch_size": 8, "sampler": [1, 2], "shuffle": True}, "exclude each other"),
    ],
)
def test_a_loader_with_wrong_limits_is_refused(options: dict[str, Any], message: str) -> None:
    job, _, _ = _job()
    with pytest.raises(InputError, match=message):
        job.loader(DATA, **options)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (DataLoader(DATA), "takes the dataset, not a DataLoader"),
        (5, "a int is not a dataset"),
        (TensorDataset(torch.zeros(0, 4)), "empty"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset: Any, message: str) -> None:
    job, _, _ = _job()
    with pytest.raises(InputError, match=message):
        job.loader(dataset, batch_size=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sync": "rign"}, "unknown sync 'rign'; did you mean 'ring'"),
        ({"batch": "adaptiv"}, "did you mean 'adaptive'"),
        ({"ddp": {"gradient_as_bucket_view": True}}, "not supported"),
        ({"same_schedule": "/none"}, "cannot read the schedule /none"),
    ],
)
def test_init_refuses_what_it_does_not_know(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        coadapt.init(**options)


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        ({"RANK": "x"}, "RANK='x'"),
        ({"RANK": "3", "WORLD_SIZE": "2"}, "ranks count from 0"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT"),
        ({"COADAPT_STORE": "nowhere"}, "HOST:PORT"),
        ({"COADAPT_JOIN": "x"}, "COADAPT_JOIN='x'"),
        ({"COADAPT_JOIN": "1"}, "and COADAPT_MEMBER and COADAPT_STORE must be set"),
        ({"COADAPT_URL": "controller", "COADAPT_JOB": "j"}, "http://"),
        ({"COADAPT_PACE": "/none"}, "cannot read the profile"),
    ],
)
def test_an_environment_that_cannot_be_is_one_line(
    envs: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in envs.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        coadapt.init()


def test_the_spec_wins_over_the_script_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COADAPT_BATCH", '{"initial":4,"max":8,"per_gpu_min":1,"per_gpu_max":8}')
    job, _, _ = _job()
    loader = job.loader(DATA, batch_size=8)
    assert len(loader) == 10
    assert "the spec is used" in caplog.text
    assert not isinstance(job.rule, Fixed)
    monkeypatch.setenv(
        "COADAPT_BATCH", '{"initial":4,"max":8,"per_gpu_min":1,"per_gpu_max":8,"mode":"fixed"}'
    )
    job, _, _ = _job()
    job.loader(DATA, batch_size=8)
    assert isinstance(job.rule, Fixed)
    assert "batch 4, fixed" in caplog.text
    monkeypatch.setenv("COADAPT_BATCH", "[]")
    job, _, _ = _job()
    with pytest.raises(InputError, match="COADAPT_BATCH"):
        job.loader(DATA, batch_size=8)


@pytest.mark.parametrize("text", ["", "{", '{"seconds":{"x":1}}', '{"seconds":{"8":-1}}', "{}", '{"pace":1}'])
def test_a_pace_that_is_none_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pace").write_text(text)
    monkeypatch.setenv("COADAPT_PACE", str(tmp_path / "pace"))
    with pytest.raises(InputError, match="pace"):
        coadapt.init()


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """What FSDP and DDP need to exist."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def _fully_shard(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0])
    return model


def _fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (_fully_shard, "FSDP models are not supported"),
        (_fsdp, "FSDP models are not supported"),
        (nn.DataParallel, "without DataParallel"),
        (nn.parallel.DistributedDataParallel, "without DistributedDataParallel"),
    ],
)
def test_models_that_are_already_wrapped_are_refused(
    wrap: Callable[[nn.Module], nn.Module], message: str
) -> None:
    model = wrap(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    with pytest.raises(InputError, match=message):
        coadapt.init().prepare(model, torch.optim.SGD(model.parameters(), 0.1))


def test_sync_batch_norm_is_refused_on_several_replicas_and_kept_on_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(InputError, match="SyncBatchNorm is not supported on 2 replicas"):
        check_model(model, optimizer, replicas=2)
    job = coadapt.init()
    model, optimizer = job.prepare(model, optimizer)
    loader = job.loader(DATA, batch_size=8)
    for _ in job.epochs(1):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert int(model.module[1].num_batches_tracked) == 5


def test_a_job_has_one_model_one_loader_and_no_lbfgs() -> None:
    job, _, _ = _job()
    other = nn.Linear(4, 2)
    with pytest.raises(InputError, match=r"prepare\(\) was called twice"):
        job.prepare(other, torch.optim.SGD(other.parameters(), 0.1))
    job.loader(DATA, batch_size=8)
    with pytest.raises(InputError, match=r"loader\(\) was called twice"):
        job.loader(DATA, batch_size=8)
    with pytest.raises(InputError, match="LBFGS"):
        coadapt.init().prepare(other, torch.optim.LBFGS(other.parameters()))


def test_what_is_reported_and_saved_is_checked() -> None:
    job, _, _ = _job()
    with pytest.raises(InputError, match="not a number"):
        job.report(loss="low")
    with pytest.raises(InputError, match="state_dict"):
        job.save_with("thing", object())

"""Plain steps in a row: the same training and the same books as steps that are looked at one by one."""

from __future__ import annotations

import collections
import itertools
import math
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from coadapt import torch as coadapt  # noqa: E402
from coadapt.errors import InputError  # noqa: E402
from coadapt.torch.elastic.notices import Notice  # noqa: E402
from coadapt.torch.training.noise_scale import SampleSchedule  # noqa: E402
from coadapt.torch.training.replica_training import PlainRun, RunningMoments  # noqa: E402

EXAMPLES, M0 = 330, 8
STEPS = -(-EXAMPLES // M0)
OURS = str(Path("coadapt") / "torch")
#: The loader's two generators and the sampler's, the model and its guard (numbers, proven), the optimizer's step.
MOST_CALLS = 9


def _job(**options: Any) -> tuple[Any, Any, Any, Any]:
    made = torch.Generator().manual_seed(5)
    x = torch.randn(EXAMPLES, 4, generator=made, dtype=torch.float64)
    torch.manual_seed(1)
    model = nn.Linear(4, 3).double()
    job = coadapt.init(batch="fixed", **options)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    loader = job.loader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=M0)
    return job, model, optimizer, loader


def _learn(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def _looked_at(job: Any) -> list[int]:
    """Steps after which something of ours was called."""
    seen: list[int] = []
    between = job._loop.between_steps
    job._loop.between_steps = lambda: (seen.append(job._training.ledger.step), between())[1]
    return seen


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_rows_of_plain_steps_are_the_same_training(every: int) -> None:
    job, model, optimizer, loader = _job(sample_every=every)
    seen = _looked_at(job)
    works = []
    for _ in job.epochs(3):
        for batch in loader:
            _learn(model, optimizer, batch)
            works.append(job.work)
    plain = _job(sample_every=1)
    for _ in plain[0].epochs(3):
        for batch in plain[3]:
            _learn(plain[1], plain[2], batch)
    assert torch.equal(model.module.weight, plain[1].module.weight)
    assert job._training.ledger == plain[0]._training.ledger
    assert len(works) == 3 * STEPS
    assert works == sorted(works)
    # work is counted when the optimizer steps, for schedules that are stepped right after it
    assert works[0] == M0
    assert len(seen) == 3 * STEPS if every == 1 else len(seen) < 2 * STEPS
    if every == 1000:
        assert len(seen) < 20


def test_a_row_ends_when_something_is_asked_for() -> None:
    job, model, optimizer, loader = _job(sample_every=1000)
    seen = _looked_at(job)
    asked_at = STEPS // 2
    for _ in job.epochs(1):
        for number, batch in enumerate(loader):
            _learn(model, optimizer, batch)
            if number + 1 == asked_at:
                job._loop.coordinator.notices.request(Notice(kind="checkpoint"))
    assert asked_at in seen
    assert asked_at - 1 not in seen


def test_leaving_the_loop_in_the_middle_of_a_row_keeps_the_books() -> None:
    job, model, optimizer, loader = _job(sample_every=1000)
    for _ in job.epochs(1):
        for number, batch in enumerate(loader):
            _learn(model, optimizer, batch)
            if number == 20:
                break
    ledger = job._training.ledger
    assert (ledger.step, ledger.position, ledger.work) == (21, 21 * M0, 21 * M0)


def test_a_missing_step_is_told_in_a_row_too() -> None:
    job, model, optimizer, loader = _job(sample_every=1000)

    def forgetful() -> None:
        for _ in job.epochs(1):
            for number, batch in enumerate(loader):
                if number != 20:
                    _learn(model, optimizer, batch)
                else:
                    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()

    with pytest.raises(InputError, match=r"no optimizer\.step"):
        forgetful()


def test_interrupting_is_only_setting_a_number() -> None:
    plain = PlainRun()
    plain.ends_at = math.inf
    plain.interrupt()
    assert plain.ends_at == 0.0


def test_many_times_at_once_are_one_after_the_other() -> None:
    values = [0.3, 0.1, 0.7, 0.2, 0.2, 0.9]
    one, other = RunningMoments(), RunningMoments()
    for value in values:
        one.add(value)
    other.add(values[0])
    other.add_all(values[1:4])
    other.add_all([])
    other.add_all(values[4:])
    assert other.count == one.count
    assert (other.mean, other.variance) == pytest.approx((one.mean, one.variance))


def test_steps_ahead_are_those_before_the_next_sample() -> None:
    sampling = SampleSchedule(every=5)
    assert sampling.ahead == 0
    assert sampling.now()
    sampling.settle(0.0, 0.0, pair=False)
    assert sampling.ahead == 4
    sampling.passed(4, 0.1)
    assert list(sampling.plain) == [0.1]
    assert sampling.ahead == 0
    assert sampling.now()


def test_samples_are_held_against_steps_by_the_processors_time() -> None:
    # by the clock on the wall a step on a busy machine lasts ten times as long, and every step would be sampled
    job, model, optimizer, loader = _job(sample_every=7)
    training = job._training
    assert training.timer.cost_clock is training.gradients.cost_clock is time.process_time
    ticks = itertools.count(step=1000.0)
    training.use_cost_clock(lambda: next(ticks))
    for _ in job.epochs(3):
        for batch in loader:
            _learn(model, optimizer, batch)
    assert training.sampling.plain
    assert training.sampling.cost
    assert all(each >= 1000 for each in (*training.sampling.plain, *training.sampling.cost))


def test_a_plain_step_makes_few_calls_of_ours() -> None:
    job, model, optimizer, loader = _job(sample_every=1000)
    calls: collections.Counter[tuple[int, str]] = collections.Counter()
    between = _looked_at(job)

    def count(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call" and OURS in frame.f_code.co_filename:
            calls[job._training.ledger.step, frame.f_code.co_name] += 1

    for epoch in job.epochs(2):
        for batch in loader:
            if epoch == 1:
                sys.setprofile(count)
            _learn(model, optimizer, batch)
        sys.setprofile(None)
    by_step: collections.Counter[int] = collections.Counter()
    for (step, _), often in calls.items():
        by_step[step] += often
    # the first and the last of a row have more to do
    plain = [by_step[step] for step in range(STEPS + 5, 2 * STEPS - 5) if step not in between]
    assert len(plain) > STEPS // 2
    assert max(plain) <= MOST_CALLS, calls

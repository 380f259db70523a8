"""Learning-rate rules and batch rules against what was published, and against bad input."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from coadapt.errors import (  # noqa: E402
    InputError,
    UnknownNameError,
)
from coadapt.model import (  # noqa: E402
    Batch,
    Configuration,
    Measurement,
)
from coadapt.plugins import RATE_RULES  # noqa: E402
from coadapt.prediction.step_time.step_table import (  # noqa: E402
    EMPTY_TABLE,
    StepTimeTable,
    observe,
)
from coadapt.torch import (  # noqa: E402
    batches,
    rates,
)
from coadapt.torch.batches import Situation  # noqa: E402
from coadapt.torch.rates import Progress  # noqa: E402

scales = st.floats(1, 64)
grads = st.tuples(st.floats(0, 10), st.floats(0, 10))


@given(scales, grads, st.floats(0, 100))
def test_rules_lie_between_no_scaling_and_linear(
    scale: float, grad: tuple[float, float], epoch: float
) -> None:
    for name in ("adascale", "sqrt", "linear", "none"):
        factor = RATE_RULES.make(name).factor(Progress(scale, grad, epoch))
        assert 1 - 1e-9 <= factor <= scale + 1e-9, name


def test_adascale_is_linear_for_noise_and_nothing_without() -> None:
    rule = rates.AdaScale()
    assert rule.factor(Progress(8, (0.0, 1.0), 0)) == pytest.approx(8)
    assert rule.factor(Progress(8, (1.0, 0.0), 0)) == pytest.approx(1)
    assert rule.factor(Progress(0.5, (1.0, 1.0), 0)) == 1


def test_linear_warms_up_over_epochs_and_legw_longer_for_larger_batches() -> None:
    linear = rates.Linear(warmup=4)
    assert [linear.factor(Progress(5, (1, 1), epoch)) for epoch in (0, 1, 2, 4, 9)] == [1, 2, 3, 5, 5]
    legw = rates.Legw(warmup=1)
    assert legw.factor(Progress(4, (1, 1), 2)) == pytest.approx(math.sqrt(4) / 2)
    assert legw.factor(Progress(4, (1, 1), 4)) == pytest.approx(2)
    assert legw.factor(Progress(1, (1, 1), 1)) == pytest.approx(1)


def test_auto_knows_adam_by_its_family() -> None:
    one = [torch.nn.Parameter(torch.zeros(1))]
    assert isinstance(rates.rule_for("auto", torch.optim.AdamW(one)), rates.SquareRoot)
    assert isinstance(rates.rule_for("auto", torch.optim.SGD(one, 0.1)), rates.AdaScale)
    with pytest.raises(UnknownNameError, match="did you mean 'adascale'"):
        rates.rule_for("adascal", torch.optim.SGD(one, 0.1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: rates.Linear(-1),
        lambda: rates.Legw(math.nan),
        lambda: batches.AdaBatch(every=0),
        lambda: batches.AdaBatch(factor=0.5),
        lambda: batches.Goodput(growth=1),
        lambda: batches.batch_rule("adaptiv"),
    ],
)
def test_nonsense_is_refused(make: object) -> None:
    with pytest.raises(InputError):
        make()  # type: ignore[operator]


def _table(times: dict[int, float]) -> StepTimeTable:
    table = EMPTY_TABLE
    for atomic, seconds in times.items():
        config = Configuration(nodes=1, replicas=2, atomic_batch=atomic)
        table = observe(table, Measurement(config=config, count=50, step_s=seconds, sync_s=0.1 * seconds))
    return table


def _now(**changes: object) -> Situation:
    given = {
        "limits": Batch(initial=32, max=4096, per_gpu_min=8, per_gpu_max=512),
        "nodes": 1,
        "replicas": 2,
        "gpu_type": "gpu",
        "batch": 32,
        "atomic": 16,
        "accumulation": 0,
        "grad": (1.0, 100.0),
        "table": _table({16: 0.1}),
        "epoch": 1.0,
    }
    return Situation(**{**given, **changes})  # type: ignore[arg-type]


def test_goodput_grows_by_at_most_twice_and_only_for_a_gain() -> None:
    flat = _now(table=_table({16: 0.1, 64: 0.1, 256: 0.1}))
    assert batches.Goodput().choose(flat).batch == 64
    assert batches.Goodput(growth=8).choose(flat).batch > 128
    no_noise = batches.Goodput().choose(flat._replace(grad=(100.0, 0.01)))
    assert (no_noise.batch, no_noise.atomic) == (32, 16)
    assert "too little" in no_noise.why


def _alone(times: dict[int, float], **changes: object) -> Situation:
    table = EMPTY_TABLE
    for atomic, seconds in times.items():
        config = Configuration(nodes=1, replicas=1, atomic_batch=atomic)
        table = observe(table, Measurement(config=config, count=50, step_s=seconds))
    limits = Batch(initial=32, max=4096, per_gpu_min=8, per_gpu_max=512, samples_alone=True)
    return _now(limits=limits, replicas=1, atomic=32, table=table, **changes)


def test_goodput_of_a_lone_replica_has_steps_of_one_pass_and_as_many_of_two_as_the_budget_allows() -> None:
    flat = _alone({32: 0.1, 64: 0.1, 128: 0.1}, grad=(1.0, 10.0))
    found = batches.Goodput().choose(flat)
    assert (found.batch, found.atomic) == (64, 64)
    # two passes of 64 at once are worth 1.71 steps of 64, or a little more, by how the noise scale changes with the batch
    lost = 0.1 * (2 - 2 * (320 + 64) / (320 + 128))
    assert 0.3 * lost < found.twice * 0.02 * 0.1 < 1.2 * lost
    # the less noise, the more of a larger step is wasted, and the fewer there are
    quiet = batches.Goodput().choose(flat._replace(grad=(1.0, 4.0)))
    assert (quiet.batch, quiet.twice > found.twice) == (64, True)
    assert batches.Goodput().choose(flat._replace(grad=(1.0, 4.0), noise_budget=0.1)).twice < quiet.twice
    # taking norms costs, too
    costly = batches.Goodput().choose(flat._replace(sample_s=0.1))
    assert costly.twice == pytest.approx(found.twice + 50, abs=2)
    assert batches.Goodput().choose(flat._replace(batch=64, atomic=64)).batch == 128
    assert batches.Goodput().choose(flat._replace(noise_budget=1e-9)).twice == 200
    # beyond the largest batch nothing goes: then it is the same batch in halves, and costs a whole pass more
    narrow = flat._replace(limits=replace(flat.limits, max=64))
    assert batches.Goodput().choose(narrow).twice == pytest.approx(50, abs=2)


def test_goodput_leaves_m0_alone_and_has_no_extra_passes_where_there_are_several_anyway() -> None:
    still = batches.Goodput().choose(_alone({32: 0.1, 64: 0.2}, grad=(1.0, 1.0)))
    assert (still.batch, still.twice) == (32, 0)
    assert batches.Goodput().choose(_now(table=_table({16: 0.1, 64: 0.1, 256: 0.1}))).twice == 0
    # beyond what one pass holds
    large = _alone({32: 0.1, 256: 0.1, 512: 0.1}, batch=600)._replace(atomic=512)
    kept = batches.Goodput(10.0).choose(large)
    assert (kept.batch, kept.twice) == (600, 0)


def test_goodput_has_some_samples_in_every_epoch_of_a_small_set_until_it_knows_something() -> None:
    now = _alone({32: 0.1, 64: 0.1, 128: 0.1}, grad=(1.0, 4.0), samples=29)
    by_budget = batches.Goodput().choose(now).twice
    small, large = now._replace(length=2000), now._replace(length=10**6)
    assert 3 <= batches.Goodput().choose(small).twice < by_budget / 2
    assert batches.Goodput().choose(large).twice == by_budget
    assert batches.Goodput().choose(small._replace(samples=30)).twice == by_budget
    assert batches.Goodput().choose(now._replace(length=10)).twice == 3


def test_goodput_does_not_change_how_many_steps_have_two_passes_for_a_little() -> None:
    now = _alone({32: 0.1, 64: 0.1}, batch=64, grad=(1.0, 5.0))._replace(atomic=64)
    found = batches.Goodput(0.9).choose(now).twice
    assert batches.Goodput(0.9).choose(now._replace(twice=round(0.8 * found))).twice == round(0.8 * found)
    assert batches.Goodput(0.9).choose(now._replace(twice=3 * found)).twice == found


def test_goodput_tries_a_larger_pass_once_where_noise_would_let_it_pay() -> None:
    noisy = _now(table=_table({16: 0.1}), grad=(0.01, 100.0))
    tried = batches.Goodput().choose(noisy)
    assert (tried.batch, tried.atomic) == (64, 32)
    # in proportion after all: back to M0, and not tried again
    slow = noisy._replace(batch=64, atomic=32, grad=(1.0, 3.0), table=_table({16: 0.1, 32: 0.2}))
    assert batches.Goodput().choose(slow).batch == 32
    again = batches.Goodput().choose(slow._replace(batch=32, atomic=16, grad=(0.01, 100.0)))
    assert "tried once" not in again.why
    assert "tried once" not in batches.Goodput().choose(_now(grad=(100.0, 0.01))).why


def test_goodput_keeps_what_is_within_its_hysteresis() -> None:
    now = _now(batch=2048, atomic=512, grad=(1.0, 30.0), table=_table({16: 0.1, 256: 0.3, 512: 0.55}))
    tight, loose = batches.Goodput(0.0).choose(now), batches.Goodput(10.0).choose(now)
    assert tight.batch < 2048
    assert loose.batch == 2048


def test_goodput_starts_with_m0_on_any_number_of_replicas() -> None:
    for replicas in range(1, 5):
        chosen = batches.Goodput().choose(_now(batch=0, atomic=0, replicas=replicas, table=EMPTY_TABLE))
        assert chosen.batch == max(32, 8 * replicas)


def test_published_rules() -> None:
    doubled = batches.AdaBatch(every=10).choose(_now(epoch=25.0))
    assert doubled.batch == 128
    assert batches.AdaBatch(every=1).choose(_now(epoch=25.0)).batch == 4096
    cabs = batches.Cabs().choose(_now(rate=0.1, metrics={"loss": 0.5}, grad=(1.0, 20.0)))
    assert cabs.batch == round(0.1 * 20 * 32 / 0.5)
    assert batches.Cabs().choose(_now(metrics={"loss": math.nan}, rate=0.1)).batch == 32
    shares = batches.LoadBalanced().choose(_now(example_s=(0.01, 0.03)))
    assert shares.speeds == pytest.approx((100, 100 / 3))
    assert batches.LoadBalanced().choose(_now()).speeds == ()
    assert batches.PerGpu().choose(_now(replicas=3)).batch == 96

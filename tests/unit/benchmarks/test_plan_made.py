"""The made-up tasks that planners are tried on."""

from __future__ import annotations

from benchmarks.plan_made import made
from benchmarks.plan_truth import Truth


def cheapest(truth: Truth) -> int:
    """GPUs of the option that costs least, whatever it takes."""
    target = truth.target(0.9)
    able = [o for o in truth.options if truth.passes_to(o.batch, target)[1]]
    return min(able, key=lambda o: truth.time_to(o, target) * o.gpus).gpus


def fastest(truth: Truth) -> int:
    """GPUs of the option that takes least time."""
    target = truth.target(0.9)
    able = [o for o in truth.options if truth.passes_to(o.batch, target)[1]]
    return min(able, key=lambda o: truth.time_to(o, target)).gpus


def test_a_task_is_the_same_each_time_it_is_made() -> None:
    one, again, other = made(3), made(3), made(4)
    assert one.pass_s == again.pass_s
    assert one.pass_s != other.pass_s


def test_tasks_differ_in_how_many_gpus_are_best_and_every_batch_size_reaches_the_targets() -> None:
    tasks = [made(seed) for seed in range(8)]
    assert min(map(cheapest, tasks)) == 1
    assert min(map(fastest, tasks)) < 8
    assert max(map(fastest, tasks)) > 32
    for truth in tasks:
        assert all(seconds > 0 for seconds in truth.pass_s.values())
        assert all(truth.passes_to(batch, truth.target(0.99))[1] for batch in truth.curves)

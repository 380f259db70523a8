"""What training commands print, and what becomes of it."""

from __future__ import annotations

import pytest

from coadapt.model import Configuration, Measurement
from coadapt.planning.measuring_session import Ran, beside, evidence_of, work_of
from coadapt.planning.problem import Evidence
from coadapt.planning.short_run import PassReport, Reader, RunFailedError, compiled, result_of
from coadapt.prediction.samples.passes import ByNoise
from coadapt.wire.agent import Report, to_line


def read(*lines: str, metric: str | None = "val_acc") -> list[PassReport]:
    reader = Reader(metric)
    for at, line in enumerate(lines, 1):
        reader.line(line + "\n", float(at))
    return reader.passes


def test_lines_by_hand() -> None:
    found = read(
        "epoch 1",
        'COADAPT {"epoch": 1, "epoch_s": 0.5, "val_acc": 0.8, "memory_bytes": 1e9, "noise_scale": 250, "note": "x"}',
        'COADAPT {"epoch": 2, "loss": NaN}',
        "COADAPT not json",
        'COADAPT {"decisions": ["batch 32"]}',
        "COADAPT [1]",
        'COADAPT {"epoch": "three"}',
    )
    assert found == [
        PassReport(
            at=2.0, epoch=1.0, epoch_s=0.5, metrics={"val_acc": 0.8}, memory_bytes=1e9, noise_scale=250.0
        ),
        PassReport(at=3.0, epoch=2.0),
    ]


def agent(epoch: float, *, count: int = 10, **metrics: float) -> str:
    """1,000 examples; batch 2 x 16 x (1 + 1); a step takes 0.3 s, a third of it synchronisation; phi is 64 x 3."""
    config = Configuration(nodes=1, replicas=2, atomic_batch=16, accumulation=1)
    measured = Measurement(
        config=config, count=count, step_s=0.3, sync_s=0.1, grad_sqr=2.0, grad_var=6.0, work=1000 * epoch, epoch=epoch, metrics=metrics
    )  # fmt: skip
    return to_line(Report(job="plan", measurements=(measured,)))


def test_lines_of_the_agent() -> None:
    first, second = read(agent(1.0, val_acc=0.7, memory_bytes=5e9), agent(1.0), agent(2.0, val_acc=0.8))
    assert first.epoch_s == pytest.approx(1000 / 64 * (0.2 + 0.3))
    assert (first.epoch, first.metrics, first.memory_bytes) == (1.0, {"val_acc": 0.7}, 5e9)
    assert first.noise_scale == pytest.approx(192)
    assert second.epoch == 2.0  # told twice, counted once
    assert read(agent(1.0, count=0))[0].epoch_s is None


def test_a_metric_that_the_agent_only_repeats_is_of_the_pass_it_was_reported_after() -> None:
    """An agent reports every few seconds, and says the last metrics each time."""
    told = [(0.5, {}), (1.0, {"val_acc": 0.7}), (1.4, {"val_acc": 0.7}), (2.0, {"val_acc": 0.7})]
    told += [(2.3, {"val_acc": 0.7}), (2.6, {"val_acc": 0.75}), (2.8, {"val_acc": 0.75, "loss": 1.0})]
    found = read(*(agent(epoch, **metrics) for epoch, metrics in told))
    assert [(each.epoch, each.metrics) for each in found if each.metrics] == [
        (1.0, {"val_acc": 0.7}),
        (2.0, {"val_acc": 0.7}),  # a pass that changed nothing
        (2.6, {"val_acc": 0.75}),  # reported in the midst of a pass
        (2.8, {"loss": 1.0}),
    ]
    assert [each.epoch for each in found] == [epoch for epoch, _ in told]


def test_lines_by_regular_expression() -> None:
    reader = Reader("acc", compiled({"acc": "acc=([0-9.]+)", "epoch_s": "took ([0-9.]+)s"}))
    for at, line in enumerate(("took 9s", "took 2.5s acc=0.5", "acc=0.6"), 1):
        reader.line(line, float(at))
    assert [(r.epoch, r.epoch_s, r.metrics["acc"]) for r in reader.passes] == [(1, 2.5, 0.5), (2, None, 0.6)]


def test_what_is_not_passes_is_told_apart() -> None:
    passes = [PassReport(at=3.0 + 1.2 * k, epoch=k + 1, epoch_s=1.0) for k in range(4)]
    found = result_of(passes, seconds=7.0, metric=None)
    assert found.pass_s == 1.0
    assert found.setup_s == pytest.approx(2.0 + 0.4)
    assert found.beside_s == pytest.approx(0.2)
    silent = result_of([PassReport(at=3.0, epoch=1), PassReport(at=4.5, epoch=2)], seconds=5.0, metric=None)
    assert (silent.pass_s, silent.setup_s) == (1.5, None)


def test_a_pass_in_which_the_machine_stood_still_does_not_count() -> None:
    times = (5.0, 1.0, 1.2, 100.0, 1.1)
    passes = [PassReport(at=10.0 * k, epoch=k, epoch_s=each) for k, each in enumerate(times, 1)]
    assert result_of(passes, seconds=60.0, metric=None).pass_s == pytest.approx(1.1)
    with pytest.raises(RunFailedError, match="a pass time of 0 s"):
        result_of([PassReport(at=1.0, epoch=1, epoch_s=0.0)], seconds=1.0, metric=None)


def ran(batch: int = 32, **told: object) -> Ran:
    return Ran(gpu_type="cpu", workers=2, nodes=1, batch=batch, seconds=9.0, pass_s=1.0, **told)  # type: ignore[arg-type]


def test_runs_that_begin_alike_say_how_steady_the_machine_is() -> None:
    steady, shaky = [ran(setup_s=2.0)] * 5, [ran(setup_s=s) for s in (1.0, 2.0, 3.0, 2.0, 1.5)]
    assert beside(steady) == (2.0, None, 0.0)
    assert 0.3 < beside(shaky).run_sd < 1.0
    assert beside(shaky[:2]).run_sd == 0.0  # two say nothing


def test_memory_and_noise_of_runs_are_kept() -> None:
    runs = [
        ran(64, memory_bytes=4e9, accumulation=1, noise=((1.0, 300.0), (2.0, 400.0)), metrics=((1.0, 0.5),))
    ]
    known = evidence_of(Evidence(), runs, gpus_per_node=8, higher_is_better=True)
    assert [(m.batch, m.bytes) for m in known.memory] == [(16.0, 4e9)]
    work = work_of(known, runs)
    assert isinstance(work, ByNoise)
    assert (work.initial, work.phi) == (64.0, (300.0, 400.0))


def test_passes_are_read_from_a_log_of_a_known_format_where_the_run_reports_none() -> None:
    reader = Reader("val_acc")
    for epoch in range(1, 4):
        reader.line(f"Epoch {epoch}/3", 10.0 * epoch - 9)
        reader.line("390/390 [====] - 9s 23ms/step - loss: 0.3 - val_acc: 0.9\n", 10.0 * epoch)
    assert [(each.epoch, each.at) for each in reader.passes] == [(1, 10.0), (2, 20.0), (3, 30.0)]
    assert reader.passes[-1].metrics["val_acc"] == 0.9
    reader.line('COADAPT {"epoch": 1, "epoch_s": 4.0}', 31.0)
    assert [each.epoch_s for each in reader.passes] == [4.0]

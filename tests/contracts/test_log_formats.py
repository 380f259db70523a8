"""Every registered log format, by the published suite.

Samples of tqdm, Lightning, Hugging Face and TensorBoard were made by running them (``tests/unit/prediction/make_log_samples.py``); the others
are written after the formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coadapt.plugins import LOG_FORMATS
from coadapt.prediction.training_log import LogFormat, LogReader, Reading
from coadapt.prediction.training_log.formats.plain import Plain
from coadapt.testing import LogFormatConformance

RECORDED = Path(__file__).parents[1] / "unit" / "prediction" / "log_samples"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def lines(count: int, line: Callable[[int], str], head: str = "") -> str:
    return head + "\n".join(line(i) for i in range(count)) + "\n"


def stamp(seconds: int) -> str:
    return f"2024-03-01 12:{seconds // 60:02d}:{seconds % 60:02d}"


def mlperf(i: int) -> str:
    keys = {0: "run_start"}.get(i, "eval_accuracy")
    said = {"namespace": "", "time_ms": 1700000000000 + 20000 * i, "event_type": "POINT_IN_TIME", "key": keys}
    said |= {
        "value": None if i == 0 else 0.1 * i,
        "metadata": {"file": "train.py", "lineno": 3, "epoch_num": 4 * i},
    }
    return ":::MLLOG " + json.dumps(said)


SAMPLES: dict[str, str] = {
    "coadapt": lines(
        6,
        lambda i: f'COADAPT {{"progress": {i / 10}, "time": {3.0 * i}, "metrics": {{"loss": {1 - i / 10}}}}}',
    ),
    "mlperf": lines(6, mlperf),
    "tqdm": recorded("tqdm.log"),
    "lightning": recorded("lightning.log")
    + lines(3, lambda i: f"Epoch 0/9  ━━━━ {5 * i}/20 0:00:0{i} • 0:00:09 5.0it/s train_loss: 1.2"),
    "huggingface": recorded("huggingface.log"),
    "keras": lines(
        8,
        lambda i: (
            f"Epoch {i // 2 + 1}/10"
            if i % 2 == 0
            else "390/390 ━━━━━━━━━━━━━━━━━━━━ 12s 31ms/step - accuracy: 0.9 - loss: 0.3"
        ),
    ),
    "torchvision": lines(
        12,
        lambda i: (
            f"Epoch: [{i // 4}]  [{100 * (i % 4):4d}/400]  eta: 0:01:02  lr: 0.100000  loss: 1.2345 (1.4000)  time: 0.2500  data: 0.0010  max mem: 512"
        ),
    ),
    "timm": lines(
        12,
        lambda i: (
            f"Train: {i // 4} [{100 * (i % 4):>4d}/400 ({25 * (i % 4):>3d}%)]  Loss: 6.950 (6.95)  Time: 0.321s,  797.51/s  (0.312s,  820.51/s)  LR: 1.000e-03  Data: 0.010 (0.012)"
        ),
    ),
    "fairseq": lines(
        10,
        lambda i: (
            f"{stamp(30 * i)} | INFO | train_inner | epoch {i // 5 + 1:03d}:   {100 * (i % 5 + 1)} / 500 loss=7.1, nll_loss=6.8, ppl=110, wps=9000, ups=3.4, wpb=3000, bsz=120, num_updates={100 * (i + 1)}, lr=0.0001, gnorm=1.2, train_wall=30, wall={30 * (i + 1)}"
        ),
    ),
    "megatron": lines(
        8,
        lambda i: (
            f" [{stamp(50 * i)}] iteration      {100 * (i + 1)}/    5000 | consumed samples:        {25600 * (i + 1)} | elapsed time per iteration (ms): 500.0 | learning rate: 1.0E-04 | global batch size:   256 | lm loss: 7.1E+00 | loss scale: 1.0 |"
        ),
    ),
    "deepspeed": lines(
        8,
        lambda i: f"steps: {10 * (i + 1)} loss: 9.1000 iter time (s): 0.900 samples/sec: 17.700",
        head="[INFO] config: max_steps=500\n",
    ),
    "detectron2": lines(
        8,
        lambda i: (
            f"[03/01 12:{i:02d}:00 d2.utils.events]:  eta: 1:{50 - i}:00  iter: {20 * (i + 1)}  total_loss: 0.5  loss_cls: 0.3  time: 3.0000  last_time: 3.01  data_time: 0.01  lr: 0.02  max_mem: 5000M"
        ),
    ),
    "mmengine": lines(
        12,
        lambda i: (
            f"2024/03/01 12:{i:02d}:00 - mmengine - INFO - Epoch(train)   [{i // 4 + 1}][{100 * (i % 4 + 1)}/400]  lr: 1.0000e-02  eta: 1:00:00  time: 0.6000  data_time: 0.01  memory: 5000  loss: 0.5"
        ),
    ),
    "nanogpt": lines(
        20, lambda i: f"step:{i}/100 train_loss:{8 - i / 10:.4f} train_time:{250 * i}ms step_avg:250.00ms"
    ),
    "mxnet": lines(
        12,
        lambda i: (
            f"[Epoch {i // 3}][Batch {99 + 100 * (i % 3)}], Speed: 640.000 samples/sec, LR=0.1, Loss=1.2"
            if i % 3 < 2
            else f"[Epoch {i // 3}] Training cost: 50.000, Loss=1.1"
        ),
        head="Namespace(batch_size=128, epochs=30, lr=0.1)\n",
    ),
    "wandb": lines(
        8,
        lambda i: f"{10 * i},{3.5 * i},{1.7e9 + 3.5 * i},{1 / (i + 1):.3f}",
        head="_step,_runtime,_timestamp,train/loss\n",
    ),
    "mlflow": lines(8, lambda i: f"{1700000000000 + 2500 * i} {1 / (i + 1):.4f} {10 * i}"),
    "plain": lines(8, lambda i: f"Epoch {i + 1}/90 loss {1 / (i + 1):.3f} val_acc 0.9{i} time 6.2{i}s"),
}


def suite(name: str) -> type[LogFormatConformance]:
    def make(self: LogFormatConformance) -> LogFormat:
        made: LogFormat = LOG_FORMATS.make(name)
        return made

    def sample(self: LogFormatConformance) -> str:
        return SAMPLES[name]

    return type(f"Test_{name}", (LogFormatConformance,), {"make": make, "sample": sample})


for _name in LOG_FORMATS:
    if _name != "tensorboard":
        globals()[f"Test_{_name}"] = suite(_name)


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) | {"tensorboard"} == set(LOG_FORMATS)


@pytest.mark.parametrize(
    ("name", "unit", "done", "total", "pace_s"),
    [
        ("coadapt", "share", 0.5, 1.0, 30.0),
        ("mlperf", "epochs", 20.0, None, 5.0),
        ("keras", "batches", 1560.0, 3900.0, 12 / 390),
        ("torchvision", "batches", 1100.0, None, 0.25),
        ("timm", "batches", 1100.0, None, 0.312),
        ("fairseq", "batches", 1000.0, None, 0.3),
        ("megatron", "steps", 800.0, 5000.0, 0.5),
        ("deepspeed", "steps", 80.0, 500.0, 0.9),
        ("detectron2", "steps", 160.0, 2220.0, 3.0),
        ("mmengine", "batches", 1200.0, None, 0.6),
        ("nanogpt", "steps", 19.0, 100.0, 0.25),
        ("mxnet", "epochs", 4.0, 30.0, 50.0),
        ("wandb", "steps", 70.0, None, 0.35),
        ("mlflow", "steps", 70.0, None, 0.25),
        ("plain", "epochs", 8.0, 90.0, 6.23),
    ],
)
def test_a_sample_tells_progress_total_and_pace(
    name: str, unit: str, done: float, total: float | None, pace_s: float
) -> None:
    from coadapt.prediction.remaining.eta_estimate import seconds_per_work

    reader = LogReader()
    reader.feed(SAMPLES[name])
    found = reader.progress()
    assert found is not None
    assert found.unit == unit
    assert found.done == pytest.approx(done)
    assert found.total == (None if total is None else pytest.approx(total, rel=0.02))
    pace = seconds_per_work(found.pace)
    assert pace is not None
    assert pace.value == pytest.approx(pace_s, rel=0.05)


def test_tensorboard_reads_records_also_in_pieces() -> None:
    data = (RECORDED / "tensorboard.tfevents").read_bytes()
    made = LOG_FORMATS.make("tensorboard")
    assert made.sniff(data[:64])
    whole, rest = made.records(data)
    assert (len(whole), rest) == (20, b"")
    assert [each.step for each in whole] == list(range(0, 200, 10))
    assert whole[1].metrics["train/loss"] == pytest.approx(1 / 11)
    found: list[Reading] = []
    pending = b""
    for at in range(0, len(data), 37):
        some, pending = made.records(pending + data[at : at + 37])
        found += some
    assert found == list(whole)
    for cut in range(0, len(data), 11):
        made.records(data[:cut] + b"\xff" * 9 + data[cut:])


def test_suite_finds_fault_with_a_format_that_raises() -> None:
    class Raising(Plain):
        def parse(self, line: str) -> Reading | None:
            return Reading(form="raising", step=int(line.split()[1].split("/")[0]), overall=True)

    class Suite(LogFormatConformance):
        def make(self) -> LogFormat:
            return Raising()

        def sample(self) -> str:
            return "step 1/10 loss 2\nstep 2/10 loss 1\n"

    with pytest.raises((ValueError, IndexError)):
        Suite().test_mutilated_lines_never_raise()

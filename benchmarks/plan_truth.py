"""What really happens under every option of a measured task: the judge of ``benchmarks.plan``.

Options: 1 to 64 GPUs, packed on nodes, x batch sizes in steps of sqrt(2) from the smallest to the largest measured one, where the batch per GPU
lies within what was measured. As in the published simulator, what lies between measurements is linear between them: step times
in the batch per GPU and in the number of GPUs, passes (in logarithms) and metrics of each row between neighbouring batch sizes. Pass time = N / B x
step time. Curve of a batch size: metric over passes (iteration x B / N), smoothed by isotonic regression, linear between its rows.
Samples show the metric before smoothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from benchmarks.prediction_samples import LOWER_IS_BETTER, _records, metric_files
from benchmarks.published import data_dir
from coadapt.planning.problem import Evidence, Option, Outcome, Question, Trial
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples.isotonic import shaped
from coadapt.prediction.samples.sample_table import EpochSample, MetricSample, epoch_table, metric_table

#: Name, where its step times are, and GPUs of a node.
TYPES = {"t4": ("pollux", "", 4), "a100": ("sia", "-dgx-ext", 8), "rtx2080ti": ("sia", "-rtx", 8)}
_LARGEST_PER_GPU = {"yolov3": 8}
MOST_GPUS = 64


@dataclass(slots=True)
class Curve:
    """Metric by passes at one batch size."""

    passes: FloatArray
    metric: FloatArray
    smooth: FloatArray
    noise: FloatArray


@dataclass
class Truth:
    """One task on some GPU types."""

    task: str
    types: tuple[str, ...] = ("t4",)
    higher: bool = True
    curves: dict[int, Curve] = field(default_factory=dict)
    pass_s: dict[Option, float] = field(default_factory=dict)

    @cached_property
    def options(self) -> list[Option]:
        """All there is to choose from."""
        return sorted(self.pass_s, key=lambda o: (o.gpu_type, o.replicas, o.batch))

    def start(self) -> float:
        """The least metric after the first row of any batch size."""
        sign = 1 if self.higher else -1
        return sign * min(sign * float(curve.smooth[0]) for curve in self.curves.values())

    def target(self, share: float) -> float:
        """So much of the gain that every batch size reaches."""
        sign = 1 if self.higher else -1
        reach = sign * min(sign * float(curve.smooth[-1]) for curve in self.curves.values())
        return self.start() + share * (reach - self.start())

    def passes_to(self, batch: int, target: float) -> tuple[float, bool]:
        """Passes until the target, or to the last row."""
        curve, sign = self.curves[batch], 1 if self.higher else -1
        above = np.flatnonzero(sign * curve.smooth >= sign * target - 1e-12)
        if not len(above):
            return float(curve.passes[-1]), False
        i = int(above[0])
        if i == 0:
            return float(curve.passes[0]), True
        low, high = curve.smooth[i - 1], curve.smooth[i]
        share = float((target - low) / (high - low))
        return float(curve.passes[i - 1] + share * (curve.passes[i] - curve.passes[i - 1])), True

    def metric_after(self, batch: int, passes: float) -> float:
        """Smoothed metric; the last one beyond the last row, the first before the first."""
        curve = self.curves[batch]
        return float(np.interp(passes, curve.passes, curve.smooth))

    def time_to(self, option: Option, target: float) -> float:
        """Seconds until the target, or to the last row."""
        return self.passes_to(option.batch, target)[0] * self.pass_s[option]

    def fastest(self, target: float) -> float:
        """Seconds of the fastest option."""
        return min(
            self.time_to(option, target) for option in self.options if self.passes_to(option.batch, target)[1]
        )

    def trial(self, question: Question) -> Trial:
        """Runs an option: to the target, or through the time there is where the metric is the aim."""

        def run(option: Option) -> Outcome:
            curve = self.curves[option.batch]
            if question.objective == "metric":
                assert question.deadline_s is not None
                passes = question.deadline_s / self.pass_s[option]
                return Outcome(question.deadline_s, self.metric_after(option.batch, passes), True)
            assert question.target is not None
            passes, reached = self.passes_to(option.batch, question.target)
            return Outcome(passes * self.pass_s[option], float(curve.smooth[-1]), reached)

        return run

    def evidence(self, samples: int, rng: np.random.Generator, noise: float = 0.0) -> Evidence:
        """So many random runs: an option and a number of passes each."""
        rows = [
            (option, row) for option in self.options for row in range(len(self.curves[option.batch].passes))
        ]
        drawn = rng.permutation(len(rows))[:samples]
        epochs: dict[str, list[EpochSample]] = {name: [] for name in self.types}
        metrics = []
        for option, row in (rows[int(i)] for i in drawn):
            curve = self.curves[option.batch]
            metrics.append(
                MetricSample(
                    batch=option.batch, epochs=float(curve.passes[row]), metric=float(curve.metric[row])
                )
            )
            epochs[option.gpu_type].append(
                EpochSample(
                    batch=option.batch,
                    workers=option.replicas,
                    nodes=option.nodes,
                    epoch_s=self.pass_s[option] * float(np.exp(noise * rng.normal())),
                )
            )
        tables = {name: epoch_table(found, gpus_per_node=TYPES[name][2]) for name, found in epochs.items()}
        return Evidence(epochs=tables, metrics=metric_table(metrics, higher_is_better=self.higher))


@lru_cache
def truth_of(task: str, types: tuple[str, ...] = ("t4",)) -> Truth:
    """The task as measured."""
    files = metric_files(data_dir() / "pollux" / task)
    initial, largest = min(files), max(files)
    examples = initial * float(files[initial][0]["progress"])
    truth = Truth(task=task, types=types, higher=task not in LOWER_IS_BETTER)
    truth.curves = _curves(files, examples, truth.higher)
    for name in types:
        measured = {
            workers: _StepTimes(by_local, _LARGEST_PER_GPU.get(task, np.inf))
            for workers, by_local in _step_times(task, name).items()
        }
        for workers in range(1, min(max(measured), MOST_GPUS) + 1):
            for batch in truth.curves:
                step_s = _step_s(measured, workers, batch)
                if step_s is not None:
                    nodes = -(-workers // TYPES[name][2])
                    option = Option(gpu_type=name, replicas=workers, nodes=nodes, batch=batch)
                    truth.pass_s[option] = examples / batch * step_s
    assert initial <= min(truth.curves)
    assert max(truth.curves) <= largest
    return truth


def _curves(files: dict[int, list[dict[str, str]]], examples: float, higher: bool) -> dict[int, Curve]:
    """A curve for each batch size of the grid."""
    sizes = sorted(files)
    rows = min(len(records) for records in files.values())
    log_passes, metric, noise = (np.empty((len(sizes), rows)) for _ in range(3))
    for i, batch in enumerate(sizes):
        records = files[batch][:rows]
        log_passes[i] = np.log([float(r["iteration"]) * batch / examples for r in records])
        metric[i] = [float(r["metric"]) for r in records]
        noise[i] = [sizes[0] * float(r["grad_var"]) / max(float(r["grad_sqr"]), 1e-30) for r in records]
    steps = round(2 * np.log2(sizes[-1] / sizes[0]))
    found = {}
    for batch in [round(sizes[0] * 2 ** (step / 2)) for step in range(steps + 1)]:
        at = np.interp(np.log(batch), np.log(sizes), np.arange(len(sizes)))
        low, share = int(at), at - int(at)
        high = min(low + 1, len(sizes) - 1)
        passes, y, phi = (
            (1 - share) * table[low] + share * table[high] for table in (log_passes, metric, noise)
        )
        smooth = shaped(y, np.ones(rows), "rising" if higher else "falling")
        found[batch] = Curve(np.exp(passes), y, smooth, phi)
    return found


class _StepTimes:
    """Of one number of workers, by batch per GPU."""

    def __init__(self, by_local: dict[int, list[float]], largest: float) -> None:
        self.local = np.array(sorted(by_local), dtype=np.float64)
        self.step_s = np.array([np.mean(by_local[size]) for size in sorted(by_local)])
        self.largest = min(float(self.local[-1]), largest)

    def at(self, per_gpu: float) -> float | None:
        """None where it was not measured."""
        if not self.local[0] <= per_gpu <= self.largest:
            return None
        return float(np.interp(per_gpu, self.local, self.step_s))


def _step_s(measured: dict[int, _StepTimes], workers: int, batch: int) -> float | None:
    """At the batch per GPU of these workers: as measured, or between the neighbouring numbers of workers."""
    low = max(known for known in measured if known <= workers)
    high = min(known for known in measured if known >= workers)
    below, above = measured[low].at(batch / workers), measured[high].at(batch / workers)
    if below is None or above is None:
        return None
    return below if low == high else below + (above - below) * (workers - low) / (high - low)


def _step_times(task: str, gpu_type: str) -> dict[int, dict[int, list[float]]]:
    """Step times by workers and batch per GPU, packed placements only."""
    folder, suffix, per_node = TYPES[gpu_type]
    base = data_dir() / folder / task
    found: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in _records(base / f"placements{suffix}.csv"):
        shape = [int(digit) for digit in record["placement"]]
        if len(shape) == -(-sum(shape) // per_node):
            found[sum(shape)][int(record["local_bsz"])].append(float(record["step_time"]))
    for record in _records(base / f"scalability{suffix}.csv"):
        if int(record["num_nodes"]) == -(-int(record["num_replicas"]) // per_node):
            found[int(record["num_replicas"])][int(record["local_bsz"])].append(float(record["step_time"]))
    return found

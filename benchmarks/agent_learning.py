"""Real training, adaptive against fixed: the accuracy it comes to, and the batches it chooses.

Steps are told to last what a profile says (``agent_worker.Told``), so that decisions do not depend on this machine's load.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.agent_runs import saved
from benchmarks.measure import Row
from benchmarks.smoke import either, few

#: Seconds of a pass by its examples. Flat up to 1,024: a device that larger batches cost nothing.
FLAT = {"1": 0.03, "1024": 0.03, "8192": 0.24}
#: 30 ms and 0.75 ms per example: where larger batches pay less and less.
RISING = {str(m): 0.03 + 0.00075 * m for m in (1, 8, 32, 64, 128, 256, 512, 1024, 2048)}
#: One-sided 95% of Student's t, by pairs.
_STUDENT = {3: 2.920, 10: 1.833}


def learning(quick: bool) -> list[Row]:
    """Adaptive against the reference batch for equal work: accuracy lost, at 95%."""
    rows = []
    for data, model, epochs in few(
        (
            ("digits", "mlp", either(1, 20)),
            ("digits", "cnn", 20),
            ("mnist", "mlp", 10),
            ("mnist", "cnn", 4),
        )
    ):
        pairs = []
        for seed in range(either(1, 1 if quick else 2)):
            options = {"data": data, "model": model, "seed": seed, "folds": either(3, 3 if quick else 5)}
            options |= {"epochs": epochs, "max": 1024, "seconds": FLAT}
            pairs += saved("folds", options, more=("agent_folds.py",), module="agent_folds")["pairs"]
        differences = [100 * (plain["accuracy"] - ours["accuracy"]) for ours, plain in pairs]
        fewer = [plain["steps"] / ours["steps"] for ours, plain in pairs]
        fixed = [plain["accuracy"] for _, plain in pairs]
        mean = float(np.mean(differences))
        worst = mean + _STUDENT[len(pairs)] * float(np.std(differences, ddof=1)) / len(pairs) ** 0.5
        note = f"mean {mean:+.2f} of {len(pairs)} pairs; fixed {np.mean(fixed):.1%}; {statistics.median(fewer):.1f}x fewer steps"
        rows.append(
            Row(f"points lost at most (95%), {data} {model}, against batch 32", worst, 1.0, note=note)
        )
    return rows


def batch(quick: bool) -> list[Row]:
    """Growth where it is free, and the batch chosen against the best of all where it is not, at three moments."""
    options = {"model": "mlp", "fold": 0, "batch": "adaptive", "max": 4096}
    flat = saved("learn", {**options, "data": "digits", "seed": 0, "epochs": either(1, 20), "seconds": FLAT})
    rows = [Row("growth of the batch on a flat device", flat["largest"] / 32, 8, at_least=True, unit="x")]
    digits = ("digits", either(2, 24), either([0], [7, 14, 21]))
    for data, epochs, moments in few((digits, ("mnist", 12, [3, 7, 10]))):
        runs = [
            saved(
                "learn",
                {
                    **options,
                    "data": data,
                    "seed": seed,
                    "epochs": epochs,
                    "moments": moments,
                    "seconds": RISING,
                },
            )
            for seed in range(either(1, 1 if quick else 3))
        ]
        for number, epoch in enumerate(moments):
            seen = [run["moments"][number] for run in runs]
            shares = [goodput(one["batch"], one["true_phi"]) / _best(one["true_phi"]) for one in seen]
            looking = [_looking(one) / _best(one["true_phi"]) for one in seen]
            said = ", ".join(f"{one['batch']} ({share:.2f})" for one, share in zip(seen, shares, strict=True))
            note = f"batch (share) by seed: {said}; true phi {statistics.mean(seen[0]['true_phi']):.0f}"
            note += f"; with what it costs to see the noise {statistics.median(looking):.2f}"
            what = f"goodput of the chosen batch over the best, {data}, epoch {epoch + 1}"
            rows.append(Row(what, statistics.median(shares), 0.95, at_least=True, note=note))
    return rows


def _best(phi: list[float]) -> float:
    """The result of the best batch size if the noise scale were known without measuring it."""
    return max(goodput(m, phi) for m in range(32, 4097))


def _looking(seen: dict[str, Any]) -> float:
    """With the larger steps of two passes that a lone replica sees the noise by."""
    batch_size, double = int(seen["batch"]), int(seen["double"])
    phi: list[float] = seen["true_phi"]
    if not seen["twice"]:
        return goodput(batch_size, phi)
    usual = int(seen["twice"]) - double / batch_size
    works = usual * _work(batch_size, phi) + _work(double, phi)
    return works / (usual * _seconds(batch_size) + _seconds(double, least=2))


def goodput(batch_size: int, phi: list[float]) -> float:
    """Work per second of an epoch in which the noise scale was ``phi``, on the device of RISING; M0 is 32."""
    return _work(batch_size, phi) / _seconds(batch_size)


def _work(batch_size: int, phi: list[float]) -> float:
    return batch_size * statistics.mean((each + 32) / (each + batch_size) for each in phi)


def _seconds(batch_size: int, least: int = 1) -> float:
    return max(-(-batch_size // 1024), least) * 0.03 + 0.00075 * batch_size

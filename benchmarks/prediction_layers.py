"""Before anything has run: layers, devices left out, whole networks on this CPU. ``python -m benchmarks.prediction_layers``

The shipped predictors, trees and network, learned from 80% of the measured layers; the last 10% are scored here
(seed 0). Further seeds are learned and scored anew, with the same recipe. A GPU left out: the other four are learned
from, 50 layers of its own 80% are given, its own last 10% are scored; the median of 10 draws. The promises are those of
the trees, which are the default; the network's figures stand beside them. Cells are saved (``benchmarks.cells``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
from scipy.stats import spearmanr

from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.published import data_dir
from benchmarks.smoke import either
from benchmarks.train_layers import Rows, log_errors, read, split, train, without
from coadapt.model.hardware import CPU, find_gpu
from coadapt.prediction._base import FloatArray
from coadapt.prediction.communication import Link, Network
from coadapt.prediction.layers import Layer, LayerTimes, Measured, memory, predict_layers, predict_step
from coadapt.prediction.layers.layer import Kind
from coadapt.prediction.layers.learned import LEARNERS, IntArray, Learned, Learner, shipped

SOURCES = ("prediction/layers/*.py", "prediction/layers/data/*.npz", "model/hardware.py")
#: What traces a network and measures layers.
TRACING = tuple(f"torch/tools/{name}.py" for name in ("layer_recorder", "profile_layers", "trace_model"))
LIMITS = {"convolution": (8.5, 7.5), "dense": (4.0, 3.5)}
DRAWS, GIVEN = 10, either(5, 50)
_BY: dict[Learner, str] = {"trees": "", "network": ", by network"}
_QUICK_ROWS = 2_000


def rows(quick: bool) -> list[Row]:
    """All rows; quick: fewer scored layers, one seed, one GPU left out, no networks on this CPU."""
    found: list[Row] = []
    for kind, (must, aim) in LIMITS.items():
        for learner in LEARNERS:
            for seed in (0,) if quick else (0, 1):
                arguments = {"kind": kind, "seed": seed, "quick": quick, "learner": learner}
                got = _cell("layers", arguments, _random_split)
                what = f"{kind}, random 80/10/10, seed {seed}{_BY[learner]}: MAPE"
                found.append(_row(what, got, must, aim, learner))
                if seed == 0:
                    found += _coverage(f"{kind}, random split{_BY[learner]}", got)
    for learner in LEARNERS:
        found += _left_out(quick, learner)
    if either(False, not quick):
        for kind in LIMITS:
            got = _cell("published", {"kind": kind}, _published)
            what = f"{kind}, the paper's network as published, to compare: MAPE"
            found.append(Row(what, got["mape"], np.inf, None, "%", _errors(got)))
        found += _networks()
    return found


def _row(what: str, got: dict[str, Any], must: float, aim: float | None, learner: Learner) -> Row:
    """Promised of the trees; the network is shown beside them."""
    promised = learner == "trees"
    return Row(what, got["mape"], must if promised else np.inf, aim if promised else None, "%", _note(got))


def _cell(name: str, arguments: dict[str, Any], compute: Any) -> dict[str, Any]:
    sources = source_hash(SOURCES, setting=("train_layers.py", "train_network.py"))
    return cell(f"prediction-{name}", arguments, sources, lambda: compute(**arguments))


def _errors(got: dict[str, Any]) -> str:
    return f"RMSE {got['rmse_ms']:.3g} ms, MRE {got['mre']:.1f}%, rank {got['rank']:.3f}, {got['count']:.0f} values"


def _note(got: dict[str, Any]) -> str:
    return f"{_errors(got)}, 80% interval holds {got['coverage']:.1f}%"


def _coverage(what: str, got: dict[str, Any]) -> list[Row]:
    """75 to 85%, as a distance from 80%."""
    off = abs(got["coverage"] - 80)
    return [
        Row(f"{what}: coverage of 80% intervals, distance", off, 5.0, None, "%", f"{got['coverage']:.1f}%")
    ]


def scores(times: LayerTimes, true_s: FloatArray) -> dict[str, Any]:
    """What a row prints."""
    error = np.abs(times.seconds - true_s)
    return {
        "mape": float(100 * (error / true_s).mean()),
        "rmse_ms": float(1e3 * np.sqrt((error**2).mean())),
        "mre": float(100 * error.sum() / true_s.sum()),
        "rank": float(spearmanr(times.seconds, true_s)[0]),
        "coverage": float(100 * ((times.low <= true_s) & (true_s <= times.high)).mean()),
        "count": len(true_s),
    }


def on_own_gpus(scored: Rows, learned: dict[Kind, Learned] | None = None) -> LayerTimes:
    """Every layer on the GPU it was measured on."""
    parts = np.zeros((3, len(scored.layers)))
    for gpu in dict.fromkeys(scored.gpus):
        at = scored.on(gpu)
        some = scored.take(at)
        got = predict_layers(some.layers, find_gpu(gpu), optimizer=some.optimizers, learned=learned)
        parts[:, at] = got.seconds, got.low, got.high
    return LayerTimes(parts[0], parts[1], parts[2], ())


def _random_split(kind: str, seed: int, quick: bool, learner: Learner) -> dict[str, Any]:
    measured = read(data_dir() / "layers", kind)
    learn, choose, score = split(len(measured.layers), seed)
    scored = measured.take(score[:_QUICK_ROWS] if quick else score)
    one = shipped(cast(Kind, kind), learner)
    if seed:
        one = _with_interval(_trained(learner)(kind, measured.take(learn), seed=seed), measured.take(choose))
    assert one is not None
    return scores(on_own_gpus(scored, {cast(Kind, kind): one}), scored.seconds)


def _trained(learner: Learner) -> Callable[..., Learned]:
    if learner == "trees":
        return train
    from benchmarks import train_network

    return train_network.train


def _with_interval(learned: Learned, held_out: Rows) -> Learned:
    low, high = np.quantile(log_errors(learned, held_out), [0.1, 0.9])
    return replace(learned, interval=(float(low), float(high)))


def _left_out(quick: bool, learner: Learner) -> list[Row]:
    known = shipped("convolution")
    assert known is not None
    found, each_gpu = [], []
    for gpu in known.gpus[:1] if quick else known.gpus:
        arguments = {"kind": "convolution", "gpu": gpu, "quick": quick, "learner": learner}
        got = _cell("left-out", arguments, _one_left_out)
        each_gpu.append(got)
        what = f"{gpu} left out, {GIVEN} layers measured{_BY[learner]}: MAPE"
        found.append(_row(what, got, 16.0, None, learner))
    mean = {key: float(np.mean([each[key] for each in each_gpu])) for key in ("mape", "coverage")}
    promised = learner == "trees"
    what = f"mean over GPUs left out{_BY[learner]}"
    found.append(Row(what, mean["mape"], 14.0 if promised else np.inf, 12.0 if promised else None, "%"))
    return found + _coverage(f"GPUs left out{_BY[learner]}", mean)


def _one_left_out(kind: str, gpu: str, quick: bool, learner: Learner) -> dict[str, Any]:
    measured = read(data_dir() / "layers", kind)
    learn, _, score = split(len(measured.layers))
    others = without(kind, measured, learn, gpu) if learner == "trees" else _network_without(kind, learn, gpu)
    learned = {cast(Kind, kind): others}
    gpus = np.array(measured.gpus)
    own, scored = (
        learn[gpus[learn] == gpu],
        measured.take(score[gpus[score] == gpu][: 500 if quick else None]),
    )
    draws = []
    for draw in range(either(1, DRAWS)):
        some = measured.take(np.random.default_rng(draw).choice(own, GIVEN, replace=False))
        given = [
            Measured(layer=layer, optimizer=by, seconds=s)
            for layer, by, s in zip(some.layers, some.optimizers, some.seconds.tolist(), strict=True)
        ]
        times = predict_layers(
            scored.layers, find_gpu(gpu), optimizer=scored.optimizers, measured=given, learned=learned
        )
        draws.append(scores(times, scored.seconds))
    return {key: float(np.median([each[key] for each in draws])) for key in draws[0]}


def _network_without(kind: str, learn: IntArray, gpu: str) -> Learned:
    from benchmarks import train_network

    return train_network.without(kind, read(data_dir() / "layers", kind), learn, gpu)


def _published(kind: str) -> dict[str, Any]:
    """The paper's own features, loss and optimizer; a fifth of its epochs."""
    from benchmarks.train_network import published

    measured = read(data_dir() / "layers", kind)
    learn, _, score = split(len(measured.layers))
    scored = measured.take(score)
    guess = published(kind, measured.take(learn), scored)
    return scores(LayerTimes(guess, guess, guess, ()), scored.seconds)


def _networks() -> list[Row]:
    got = cell("prediction-networks", {}, source_hash((*SOURCES, *TRACING)), _measured_networks)
    note = _note(got)
    return [
        Row("5 small networks x 3 batch sizes on this CPU: MAPE", got["mape"], 20.0, 12.0, "%", note),
        Row("the same: rank correlation", got["rank"], 0.95, at_least=True),
        Row(
            "the same: peak memory, MAPE", got["memory"], 10.0, None, "%", f"worst {got['memory_worst']:.1f}%"
        ),
    ]


def _measured_networks() -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.layer_networks", "--layers", "400", "--seconds", "150"]
    got = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    known = msgspec.convert(got["layers"], list[Measured])
    network = Network(inside=Link(bytes_s=1e9), between=Link(bytes_s=1e9))
    steps, held = [], []
    for each in got["networks"]:
        layers, count = msgspec.convert(each["traced"]["layers"], list[Layer]), each["traced"]["parameters"]
        steps.append(predict_step(layers, count, CPU, network, measured=known).step_s)
        held.append(memory(layers, count, each["traced"]["input_bytes"], each["batch"], CPU).peak.value)
    true_s = np.array([each["seconds"] for each in got["networks"]])
    value, low, high = (np.array([getattr(s, name) for s in steps]) for name in ("value", "low", "high"))
    off = np.abs(np.array(held) / [each["peak_bytes"] for each in got["networks"]] - 1)
    found = scores(LayerTimes(value, low, high, ()), true_s)
    return {**found, "memory": float(100 * off.mean()), "memory_worst": float(100 * off.max())}


def main() -> None:
    """Prints target beside figure; exit code 1 where a must falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    found = rows(parser.parse_args().quick)
    sys.exit(0 if show("Before anything has run", found) else 1)


if __name__ == "__main__":
    main()

"""Before anything has run: layers, devices left out, whole networks on this CPU. ``python -m benchmarks.prediction_layers``

The shipped predictor learned from 80% of the measured layers; the last 10% are scored here (seed 0). Further seeds
are learned and scored anew, with the same recipe. A GPU left out: the other four are learned from, 50 layers of
its own 80% are given, its own last 10% are scored; the median of 10 draws. Cells are saved (``benchmarks.cells``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any, cast

import msgspec
import numpy as np
from scipy.stats import spearmanr

from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.published import data_dir
from benchmarks.train_layers import Rows, read, split, train, without
from coadapt.predict._base import FloatArray
from coadapt.predict.communication import Link, Network
from coadapt.predict.hardware import CPU, find_gpu
from coadapt.predict.layers import Layer, LayerTimes, Measured, memory, predict_layers, predict_step
from coadapt.predict.layers.layer import Kind
from coadapt.predict.layers.learned import Learned, shipped

SOURCES = ("predict/layers/*.py", "predict/layers/data/*.npz", "predict/hardware.py")
LIMITS = {"convolution": (8.5, 7.5), "dense": (4.0, 3.5)}
DRAWS, GIVEN = 10, 50
_QUICK_ROWS = 2_000


def rows(quick: bool) -> list[Row]:
    """All rows; quick: fewer scored layers, one seed, one GPU left out, no networks."""
    found: list[Row] = []
    for kind, (must, aim) in LIMITS.items():
        for seed in (0,) if quick else (0, 1):
            got = _cell("layers", {"kind": kind, "seed": seed, "quick": quick}, _random_split)
            found.append(
                Row(f"{kind}, random 80/10/10, seed {seed}: MAPE", got["mape"], must, aim, "%", _note(got))
            )
            if seed == 0:
                found += _coverage(f"{kind}, random split", got)
    found += _left_out(quick)
    if not quick:
        found += _networks()
        got = _cell("mlp", {"kind": "convolution"}, _feed_forward)
        found.append(
            Row(
                "convolution, the paper's network (30,000 rows), to compare: MAPE",
                got["mape"],
                np.inf,
                None,
                "%",
            )
        )
    return found


def _cell(name: str, arguments: dict[str, Any], compute: Any) -> dict[str, Any]:
    return cell(f"prediction-{name}", arguments, source_hash(SOURCES), lambda: compute(**arguments))


def _note(got: dict[str, Any]) -> str:
    return (
        f"RMSE {got['rmse_ms']:.3g} ms, MRE {got['mre']:.1f}%, rank {got['rank']:.3f}, "
        f"80% interval holds {got['coverage']:.1f}%, {got['count']} layers"
    )


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


def _random_split(kind: str, seed: int, quick: bool) -> dict[str, Any]:
    measured = read(data_dir() / "layers", kind)
    learn, choose, score = split(len(measured.layers), seed)
    scored = measured.take(score[:_QUICK_ROWS] if quick else score)
    learned = None
    if seed:
        from dataclasses import replace

        from benchmarks.train_layers import log_errors

        one = train(kind, measured.take(learn), seed=seed)
        low, high = np.quantile(log_errors(one, measured.take(choose)), [0.1, 0.9])
        learned = {cast(Kind, kind): replace(one, interval=(float(low), float(high)))}
    return scores(on_own_gpus(scored, learned), scored.seconds)


def _left_out(quick: bool) -> list[Row]:
    known = shipped("convolution")
    assert known is not None
    gpus = known.gpus[:1] if quick else known.gpus
    got = {
        gpu: _cell("left-out", {"kind": "convolution", "gpu": gpu, "quick": quick}, _one_left_out)
        for gpu in gpus
    }
    found = [
        Row(f"{gpu} left out, {GIVEN} layers measured: MAPE", each["mape"], 16.0, None, "%", _note(each))
        for gpu, each in got.items()
    ]
    mean = float(np.mean([each["mape"] for each in got.values()]))
    found.append(Row("mean over GPUs left out", mean, 14.0, 12.0, "%"))
    held = float(np.mean([each["coverage"] for each in got.values()]))
    return found + _coverage("GPUs left out", {"coverage": held})


def _one_left_out(kind: str, gpu: str, quick: bool) -> dict[str, Any]:
    measured = read(data_dir() / "layers", kind)
    learn, _, score = split(len(measured.layers))
    learned = {cast(Kind, kind): without(kind, measured, learn, gpu)}
    gpus = np.array(measured.gpus)
    own, scored = (
        learn[gpus[learn] == gpu],
        measured.take(score[gpus[score] == gpu][: 500 if quick else None]),
    )
    draws = []
    for draw in range(DRAWS):
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


def _feed_forward(kind: str) -> dict[str, Any]:
    """A network of the paper's kind on the paper's features, scikit-learn's, in minutes instead of hours."""
    from sklearn.neural_network import MLPRegressor
    from sklearn.preprocessing import StandardScaler

    from benchmarks.train_layers import columns_of
    from coadapt.predict.layers.features import matrix

    measured = read(data_dir() / "layers", kind)
    learn, _, score = split(len(measured.layers))
    names = [
        "batch",
        "size",
        "kernel",
        "channels_in",
        "channels_out",
        "stride",
        "same",
        "bias",
        "out_size",
        "optimizer",
        "activation",
    ]
    names += ["peak", "bandwidth", "cores", "clock"]
    some, scored = measured.take(learn[:30_000]), measured.take(score)
    given, asked = (matrix(columns_of(each)[0], names) for each in (some, scored))
    scale = StandardScaler().fit(np.log1p(given))
    network = MLPRegressor(
        hidden_layer_sizes=(32, 64, 128, 256, 128, 64), max_iter=25, random_state=0, n_iter_no_change=25
    )
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.fit(scale.transform(np.log1p(given)), np.log(some.seconds))
    guess = np.exp(network.predict(scale.transform(np.log1p(asked))))
    return scores(LayerTimes(guess, guess, guess, ()), scored.seconds)


def _networks() -> list[Row]:
    got = cell("prediction-networks", {}, source_hash((*SOURCES, "torch/*.py")), _measured_networks)
    note = f"MRE {got['mre']:.1f}%, intervals hold {got['coverage']:.0f}% of {got['count']}"
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

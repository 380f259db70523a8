"""``coadapt.predict`` as a Python function; the model is traced elsewhere, here its layers are given."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

import coadapt
from coadapt.cli.main import run
from coadapt.errors import CoadaptError, InputError
from coadapt.model.hardware import find_gpu
from coadapt.planning import torch_tools
from coadapt.prediction.communication import Link, Network
from coadapt.prediction.layers import Layer
from coadapt.store import Predictions
from coadapt.wire.tool_messages import Traced


def dense(name: str, batch: int, width: int = 512) -> Layer:
    size = 4.0 * batch * width
    return Layer(
        name=name,
        kind="dense",
        batch=batch,
        flops=2.0 * batch * width * width,
        input_bytes=size,
        output_bytes=size,
        parameters=width * width,
        rows=batch,
        columns=width,
        depth=width,
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the tool in the user's interpreter was asked; it answers with two dense layers."""
    questions: list[list[str]] = []

    def one_answer(tool: str, arguments: list[str], **others: Any) -> Traced:
        questions.append([tool, *arguments])
        batch = int(arguments[-1])
        layers = tuple(msgspec.Raw(msgspec.json.encode(dense(name, batch))) for name in ("a", "b"))
        return Traced(layers=layers, parameters=2 * 512 * 512, input_bytes=4.0 * 512 * batch)

    monkeypatch.setattr(torch_tools, "one_answer", one_answer)
    return questions


def test_prediction_has_steps_passes_and_a_total(asked: list[list[str]]) -> None:
    found = coadapt.predict(
        "-train.py:net", inputs=["512", "8:int"], batch=64, gpu="v100", replicas=4, data_size=1000, passes=2.5
    )
    assert asked == [
        ["trace_model", "./-train.py:net", "--input", "512", "--input", "8:int", "--batch", "64"]
    ]
    assert found.steps_per_pass == 4
    assert found.pass_s is not None
    assert found.total_s is not None
    assert found.total_s.value == pytest.approx(10 * found.step_s.value)
    assert 0 < found.step_s.low < found.step_s.value < found.step_s.upper
    assert not found.lower_bound
    assert found.memory.peak.value > 0
    assert repr(found).count("\n") == 0
    assert len(repr(found)) < 120


def test_plain_data_is_what_the_command_prints(
    asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = coadapt.predict(
        "t.py:net", inputs="512", batch=8, gpu="p100", data_size=100, passes=3, gpus_per_node=4, network=10.0
    )
    words = "predict t.py:net --input 512 --batch 8 --gpu p100 --data-size 100 --epochs 3 --gpus-per-node 4 --network 10"
    assert run([*words.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert found.prediction_id == 1
    assert printed.pop("prediction_id") == 2
    plain = found.to_dict()
    del plain["prediction_id"]
    assert json.loads(msgspec.json.encode(plain)) == printed
    assert list(plain) == list(printed)


def test_objects_may_be_given_in_place_of_names(asked: list[list[str]]) -> None:
    gpu = find_gpu("v100")
    slow = Network(
        inside=Link(bytes_s=gpu.link_bytes_s, latency_s=1e-5),
        between=Link(bytes_s=1e8, latency_s=3e-5),
        per_node=1,
    )
    by_name, by_object = (
        coadapt.predict(
            "t.py:net", inputs="512", batch=8, gpu=each, replicas=2, gpus_per_node=1, network=wire
        )
        for each, wire in (("V100", 0.8), (gpu, slow))
    )
    assert by_object.step == by_name.step
    assert by_object.gpu is gpu


def test_total_is_kept_with_the_method_of_most_layers(asked: list[list[str]]) -> None:
    found = coadapt.predict("t.py:net", inputs="512", batch=8, gpu="t4", data_size=100, passes=3)
    with Predictions() as store:
        (kept,) = store.all()
    assert found.total_s is not None
    assert (kept.id, kept.tool, kept.done, kept.actual_s) == (found.prediction_id, "predict", 0.0, None)
    assert (kept.value_s, kept.low_s, kept.high_s) == (
        found.total_s.value,
        found.total_s.low,
        found.total_s.upper,
    )
    assert kept.method == max(found.step.methods, key=lambda name: (found.step.methods[name], name))
    assert kept.subject == "t.py:net on 1 t4, batch 8"
    assert kept.shown_at > 1.6e9


def test_neither_a_step_nor_a_bound_is_kept(monkeypatch: pytest.MonkeyPatch, asked: list[list[str]]) -> None:
    assert coadapt.predict("t.py:net", inputs="512", batch=8, gpu="t4").prediction_id is None
    told = {"inputs": "512", "batch": 8, "gpu": "t4", "data_size": 100, "passes": 3}
    assert coadapt.predict("t.py:net", **told, keep=False).prediction_id is None
    early = Traced(
        layers=(), parameters=100, input_bytes=1.0, failed_layer="a", reason="no", unreached_parameters=100
    )
    monkeypatch.setattr(torch_tools, "one_answer", lambda *arguments, **others: early)
    bound = coadapt.predict("t.py:net", **told)
    assert bound.lower_bound
    assert bound.prediction_id is None
    assert bound.to_dict()["largest_batch"] is None
    with Predictions() as store:
        assert store.all() == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch": 0}, "batch must be a whole number of 1 or more, not 0"),
        ({"batch": True}, "batch must be a whole number"),
        ({"replicas": 1.5}, "replicas must be a whole number"),
        ({"data_size": 0}, "data_size must be"),
        ({"data_size": 10, "passes": 0}, "passes must be a number, more than 0"),
        ({"data_size": 10, "passes": math.inf}, "passes must be a number"),
        ({"passes": 3}, "needs --data-size"),
        ({"overlap": 1.5}, "overlap must be a number, from 0 to 1"),
        ({"overlap": math.nan}, "overlap must be"),
        ({"network": -1.0}, "network must be a number, more than 0"),
        ({"timeout_s": 0}, "timeout_s must be"),
        ({"gpu": "v10"}, "did you mean 'v100'"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"sync": "rings"}, "did you mean 'ring'"),
        ({"learner": "tree"}, "did you mean 'trees'"),
        ({"inputs": []}, "no inputs"),
        ({"inputs": "3xx"}, "3xx"),
        ({"measured": "none.jsonl"}, "cannot read none.jsonl"),
    ],
)
def test_wrong_values_are_refused_before_the_model_is_built(
    wrong: dict[str, Any], said: str, asked: list[list[str]]
) -> None:
    given = {"inputs": "512", "batch": 8, "gpu": "t4", **wrong}
    with pytest.raises(CoadaptError) as caught:
        coadapt.predict("t.py:net", **given)
    assert isinstance(caught.value, InputError)
    assert said in str(caught.value)
    assert asked == []

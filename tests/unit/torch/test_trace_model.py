"""Models as layers. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.prediction.layers import Layer  # noqa: E402
from coadapt.torch.tools.trace_model import (  # noqa: E402
    RefusedError,
    parse_input,
    trace,
    trace_target,
)
from coadapt.wire.tool_messages import Traced  # noqa: E402

nn = torch.nn
FLOAT = torch.float32


def layers_of(traced: Traced) -> list[Layer]:
    return [msgspec.json.decode(raw, type=Layer) for raw in traced.layers]


def test_convolution_and_dense_are_counted_by_hand() -> None:
    def build() -> object:
        return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10))

    first, relu, last = layers_of(trace(build, [((3, 8, 8), FLOAT)], 5))
    assert (first.kind, first.name, first.flops) == ("convolution", "0", 2.0 * 5 * 16 * 8 * 27)
    assert (first.parameters, first.size, first.out_size, first.stride) == (8 * 27 + 8, 8, 4, 2)
    assert (relu.kind, relu.output_bytes) == ("activation", 4.0 * 5 * 8 * 16)
    assert (last.kind, last.flops, last.parameters) == ("dense", 2.0 * 5 * 128 * 10, 1290)
    # the convolution's input, the ReLU's output (which is the dense layer's input): each once
    assert sum(layer.saved_bytes for layer in (first, relu, last)) == 4.0 * 5 * (3 * 64 + 8 * 16)


def test_flops_agree_with_pytorchs_own_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def build() -> object:
        return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    ours = layers_of(trace(build, [((6, 32), FLOAT)], 3))
    model = build()
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(3, 6, 32))
    products = sum(layer.flops for layer in ours if layer.kind in ("dense", "attention", "convolution"))
    assert products == counter.get_total_flops()
    assert {"attention", "dense", "normalisation"} <= {layer.kind for layer in ours}


def test_recurrent_and_embedding() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cells = nn.Embedding(50, 8), nn.LSTM(8, 16, batch_first=True)

        def forward(self, x: object) -> object:
            return self.cells(self.table(x))[0]

    table, cells = layers_of(trace(Model, [((7,), torch.int64)], 4))
    assert (table.kind, table.parameters) == ("embedding", 400)
    assert (cells.kind, cells.steps, cells.flops) == ("recurrent", 7, 2.0 * 28 * 64 * 24)
    assert cells.saved_bytes > 4 * 28 * 16


def test_control_flow_on_values_takes_one_path_and_says_so() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * 2 if x.sum() > 0 else x)

    traced = trace(lambda: Model(4, 3), [((4,), FLOAT)], 10)
    assert traced.how == "run"
    assert "looks at values" in traced.notes[0]
    dense = next(layer for layer in layers_of(traced) if layer.kind == "dense")
    assert (dense.batch, dense.flops) == (10, 2.0 * 10 * 4 * 3)


def test_model_that_cannot_be_traced_names_layer_and_reason_and_keeps_bounds() -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > -1e9:
                raise ValueError("not today")
            return x

    traced = trace(lambda: nn.Sequential(nn.Linear(4, 5), Bad(), nn.Linear(5, 6)), [((4,), FLOAT)], 2)
    assert traced.failed_layer == "1"
    assert traced.reason == "ValueError: not today"
    assert traced.unreached_parameters == 36
    assert layers_of(traced)[0].kind == "dense"


def test_wrong_input_is_refused_in_one_line() -> None:
    with pytest.raises(RefusedError, match=r"the model fails on --input 7 in layer 'Linear': RuntimeError"):
        trace(lambda: nn.Linear(4, 5), [((7,), FLOAT)], 2)


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_numbers_of_the_wrong_type_are_wrong_input(kind: torch.dtype) -> None:
    with pytest.raises(RefusedError, match="the model fails on --input 3x32x32 in layer 'Conv2d'"):
        trace(lambda: nn.Conv2d(3, 8, 3), [((3, 32, 32), kind)], 4)


def test_input_that_cannot_be_made_is_no_crash() -> None:
    """More dimensions than PyTorch knows: the answer is a refusal or bounds, never another error."""
    with pytest.raises(RefusedError):
        trace(lambda: nn.Linear(4, 5), [((1,) * 200, FLOAT)], 2)


@pytest.mark.parametrize("text", ["3xA", "0x3", "3x224:image"])
def test_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="--input"):
        parse_input(text)


@pytest.mark.parametrize(
    ("code", "target", "message"),
    [
        ("raise OSError('no data')", "bad_0.py:build", "bad_0.py does not import: OSError: no data"),
        ("def build(): return 3", "bad_1.py:build", "bad_1.py:build returns int, not a torch.nn.Module"),
        ("def build(): return 3", "bad_2.py:bild", "bad_2.py has no function 'bild'; did you mean 'build'?"),
        ("def build(x): return 3", "bad_3.py:build", "bad_3.py:build needs arguments (x)"),
        ("", "none.py:build", "there is no file none.py"),
        ("", "bad_5.py", "'bad_5.py' is not FILE:FUNCTION"),
    ],
)
def test_target_that_does_not_work_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, target: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    if code:
        (tmp_path / target.partition(":")[0]).write_text(code)
    with pytest.raises(RefusedError) as refused:
        trace_target(target, ["3"], 2)
    assert str(refused.value).startswith(message)

"""What ``coadapt.predict`` offers, and what importing it costs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

from coadapt import predict

#: Parts of a predictor that is offered under another name.
_INSIDE = {"metric_curves", "step_aware", "step_fit", "step_published"}


@pytest.mark.parametrize("name", predict.__all__)
def test_offered_name_is_there_and_lives_where_it_says(name: str) -> None:
    found = getattr(predict, name)
    if isinstance(found, ModuleType):
        assert found.__name__ == f"coadapt.predict.{name}"
    elif isinstance(found, type):
        assert found.__name__ == name
    assert name in dir(predict)


def test_every_module_that_predicts_is_offered() -> None:
    predicting = set()
    for module in pkgutil.iter_modules(predict.__path__):
        loaded = importlib.import_module(f"coadapt.predict.{module.name}")
        if callable(vars(loaded).get("predict")) or callable(vars(loaded).get("fit")):
            predicting.add(module.name)
    assert {"step_time", "noise", "epoch_time"} <= predicting
    assert predicting - _INSIDE <= set(predict.__all__)


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'step_tim'"):
        _ = predict.step_tim  # type: ignore[attr-defined]


def test_import_brings_neither_numpy_nor_a_predictor() -> None:
    script = "import sys, coadapt.predict; print(*(m for m in sys.modules if m.startswith(('coadapt', 'numpy', 'scipy'))))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"coadapt", "coadapt.predict"}

"""What ``coadapt.prediction`` offers, and what importing it costs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

from coadapt import prediction


@pytest.mark.parametrize("name", prediction.__all__)
def test_offered_name_is_there(name: str) -> None:
    found = getattr(prediction, name)
    if isinstance(found, type):
        assert found.__name__ == name
    assert name in dir(prediction)


def test_every_module_of_the_package_imports() -> None:
    found = [each.name for each in pkgutil.walk_packages(prediction.__path__, "coadapt.prediction.")]
    assert {"coadapt.prediction.step_time._base", "coadapt.prediction.gradient_noise"} <= set(found)
    for name in found:
        importlib.import_module(name)


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'step_tim'"):
        _ = prediction.step_tim  # type: ignore[attr-defined]


def test_import_brings_neither_numpy_nor_a_predictor() -> None:
    script = "import sys, coadapt.prediction; print(*(m for m in sys.modules if m.startswith(('coadapt', 'numpy', 'scipy'))))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"coadapt", "coadapt._lazy", "coadapt.prediction"}

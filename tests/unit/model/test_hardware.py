from __future__ import annotations

import pytest

from coadapt.cli.predict import command
from coadapt.model.hardware import GPUS, UnknownGpuError, find_gpu


@pytest.mark.parametrize("name", [" NVIDIA V100", "RTX 2080 Ti", "rtx_2080_ti", "A100-SXM4-80GB", "CPU"])
def test_gpus_are_found_as_people_write_them(name: str) -> None:
    assert find_gpu(name).name in {"v100", "rtx2080ti", "a100-80gb", "cpu"}


@pytest.mark.parametrize("name", ["v1000", "", "abacus"])
def test_an_unknown_gpu_is_told_with_a_remedy_that_exists(name: str) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu(name)
    text = str(caught.value)
    assert "\n" not in text
    assert "coadapt profile layers -o FILE" in text
    options = {option for each in command.params for option in each.opts}
    assert {"--gpu", "--layer-times"} <= options
    assert "(--layer-times FILE)" in text


def test_every_listed_gpu_is_found_by_its_own_name() -> None:
    assert all(find_gpu(name) is gpu for name, gpu in GPUS.items())

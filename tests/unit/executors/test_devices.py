from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.executors.node import devices
from coadapt.executors.node.devices import (
    Devices,
    Gpu,
    Taken,
    allowed,
    find_gpus,
    short_name,
    this_machine,
)
from coadapt.model import Node

TWO = [Gpu(0, "GPU-aa", "t4"), Gpu(1, "GPU-bb", "t4")]


def an_nvml(*names: str | bytes, error: bool = False) -> ModuleType:
    class NVMLError(Exception):
        pass

    def init() -> None:
        if error:
            raise NVMLError("Driver Not Loaded")

    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError, nvml.nvmlInit, nvml.nvmlShutdown = NVMLError, init, lambda: None
    nvml.nvmlDeviceGetCount = lambda: len(names)
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetName = lambda index: names[index]
    nvml.nvmlDeviceGetUUID = lambda index: f"GPU-{index}"
    return nvml  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA L40S", "l40s"),
        ("", "gpu"),
    ],
)
def test_gpu_has_the_name_clusters_use(name: str, short: str) -> None:
    assert short_name(name) == short


def test_gpus_are_found_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", an_nvml("Tesla T4", b"Tesla T4"))
    assert find_gpus({}) == [Gpu(0, "GPU-0", "t4"), Gpu(1, "GPU-1", "t4")]
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == [Gpu(1, "GPU-1", "t4")]


def test_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", an_nvml("Tesla T4", error=True))
    assert find_gpus({}) == []


def test_gpus_are_found_by_nvidia_smi_where_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    said = "0, GPU-aa, Tesla T4\n1, GPU-bb, NVIDIA A100-SXM4-40GB\nnonsense\n"
    monkeypatch.setattr(
        devices.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=said)
    )
    assert find_gpus({}) == [Gpu(0, "GPU-aa", "t4"), Gpu(1, "GPU-bb", "a100")]


def test_nvidia_smi_that_fails_or_is_absent_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(
        devices.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 9, stdout="0, a, b")
    )
    assert find_gpus({}) == []

    def absent(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(devices.subprocess, "run", absent)
    assert find_gpus({}) == []


def test_only_visible_gpus_are_offered() -> None:
    assert allowed(TWO, None) == TWO
    assert allowed(TWO, "1,0") == [TWO[1], TWO[0]]
    assert allowed(TWO, "GPU-b") == [TWO[1]]
    assert allowed(TWO, "") == []
    assert allowed(TWO, "0,7,1") == [TWO[0]]  # as CUDA does


def test_machine_offers_its_gpus_else_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_gpus", lambda: TWO)
    (node,) = this_machine()
    assert (node.name, node.gpus, node.gpu_type) == ("local", 2, "t4")
    monkeypatch.setattr(devices, "find_gpus", lambda: [*TWO, Gpu(2, "GPU-cc", "a100")])
    assert [(n.name, n.gpus) for n in this_machine()] == [("local-t4", 2), ("local-a100", 1)]
    monkeypatch.setattr(devices, "find_gpus", list)
    (node,) = this_machine()
    assert (node.name, node.gpu_type) == ("local", "cpu")
    assert node.gpus >= 1


def test_node_is_virtual_because_it_was_said_so_and_not_by_its_name() -> None:
    held = Devices(
        [Node(name="gpu-07", gpus=1, gpu_type="t4")], virtual=[Node(name="local", gpus=1)], gpus=TWO
    )
    assert not held.is_virtual("gpu-07")
    assert held.visible("gpu-07", held.take("gpu-07", 1).numbers)["CUDA_VISIBLE_DEVICES"] == "0"
    assert held.is_virtual("local")
    assert held.visible("local", held.take("local", 1).numbers) == {}


def test_replicas_see_the_gpus_they_were_given() -> None:
    held = Devices(
        [Node(name="local", gpus=2, gpu_type="a100")], gpus=[*TWO, Gpu(5, "x", "a100"), Gpu(7, "y", "a100")]
    )
    first, second = held.take("local", 1), held.take("local", 1)
    assert held.visible("local", second.numbers) == {
        "CUDA_VISIBLE_DEVICES": "7",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert held.visible("local", (*first.numbers, *second.numbers))["CUDA_VISIBLE_DEVICES"] == "5,7"
    assert held.cores(first) is None


def test_cores_are_pinned_and_virtual_gpus_are_not() -> None:
    cores, gpus = Node(name="local", gpus=2, gpu_type="cpu"), Node(name="n0", gpus=4, gpu_type="t4")
    held = Devices([cores], virtual=[gpus], cores=[3, 8, 9])
    assert held.cores(held.take("local", 1)) == {3}
    assert held.cores(held.take("local", 1)) == {8}
    virtual = held.take("n0", 2)
    assert held.cores(virtual) is None
    assert held.visible("n0", virtual.numbers) == {}


def test_more_slots_than_cores_are_not_pinned() -> None:
    held = Devices([Node(name="local", gpus=4, gpu_type="cpu")], cores=[0, 1])
    assert held.cores(held.take("local", 1)) is None


def test_what_is_not_there_is_refused_in_one_line() -> None:
    held = Devices((), virtual=[Node(name="n0", gpus=1)])
    with pytest.raises(InputError, match="unknown node 'n7'; this machine has n0"):
        held.take("n7", 1)
    held.take("n0", 1)
    with pytest.raises(InputError, match="node n0 has 0 free GPUs, a replica needs 1"):
        held.take("n0", 1)
    with pytest.raises(InputError, match="must offer 2 a100, but this machine has 0"):
        Devices([Node(name="local", gpus=2, gpu_type="a100")], gpus=TWO)


def test_shares_of_a_gpu_may_have_several_owners() -> None:
    held = Devices((), virtual=[Node(name="n0", gpus=1)])
    halves = [held.take("n0", 1, 0.5), held.take("n0", 1, 0.5)]
    with pytest.raises(InputError):
        held.take("n0", 1, 0.5)
    for half in halves:
        held.give_back(half)
    assert held.take("n0", 1).numbers == (0,)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_no_device_is_ever_given_twice(moves: list[tuple[bool, int]]) -> None:
    held = Devices((), virtual=[Node(name="n0", gpus=5)])
    out: list[Taken] = []
    for take, count in moves:
        if take:
            free = 5 - sum(len(each.numbers) for each in out)
            if count <= free:
                out.append(held.take("n0", count))
            else:
                with pytest.raises(InputError):
                    held.take("n0", count)
        elif out:
            held.give_back(out.pop(count % len(out)))
        numbers = [number for each in out for number in each.numbers]
        assert len(numbers) == len(set(numbers))

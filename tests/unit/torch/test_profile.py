"""Random layers, measured. Needs PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.prediction.layers import KINDS  # noqa: E402
from coadapt.torch.tools.profile_layers import (  # noqa: E402
    draw,
    measure,
)
from coadapt.torch.tools.profile_network import fitted  # noqa: E402


def test_random_layers_are_the_same_every_time_and_of_all_kinds() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        kinds = [measure(index, "cpu").layer.kind for index in range(12)]
        assert measure(4, "cpu").layer == measure(4, "cpu").layer
    finally:
        torch.set_num_threads(threads)
    assert set(kinds) == set(KINDS)


def test_drawn_layer_depends_on_its_number_only() -> None:
    assert [draw(3)[1], draw(5)[1]] == [draw(3)[1], draw(5)[1]]
    assert draw(0)[1] != draw(12)[1]


def test_link_is_found_again() -> None:
    sizes = (1024, 65536, 4194304)
    # two replicas: two messages, each of half the size
    times = tuple(2 * (1e-4 + size / 2 / 1e9) for size in sizes)
    link = fitted(sizes, times, 2, "gloo")
    assert link.bytes_s == pytest.approx(1e9)
    assert link.latency_s == pytest.approx(1e-4)

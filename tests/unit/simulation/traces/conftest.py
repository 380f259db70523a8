"""Opening the samples."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_samples import SAMPLES, a_profiled_spec

from coadapt.simulation.traces import Workload, open_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # for tests/data.py


@pytest.fixture
def sample() -> Callable[..., Workload]:
    """Open a sample by name."""

    def opened(name: str, **options: object) -> Workload:
        return open_trace(SAMPLES / name, profiles=a_profiled_spec, **options)  # type: ignore[arg-type]

    return opened

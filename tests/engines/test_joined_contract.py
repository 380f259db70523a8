"""The executor of joined machines, by the published suite."""

from __future__ import annotations

from pathlib import Path

from coadapt.testing import LiveBench, LiveExecutorConformance
from tests.engines.hub_bench import JoinedBench


class TestJoinedExecutor(LiveExecutorConformance):
    def bench(self, directory: Path) -> LiveBench:
        return JoinedBench(directory)

"""Same seed, byte-identical log, whatever PYTHONHASHSEED."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from coadapt.model import encode
from tests.builders import every_policy
from tests.properties.log_of import workload
from tests.properties.world import live

ROOT = Path(__file__).parents[2]


def logs_with(hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.properties.log_of", *every_policy()]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_logs_do_not_depend_on_the_hash_seed() -> None:
    first, second = logs_with("1"), logs_with("271828")
    assert first == second
    assert len(first.splitlines()) == len(every_policy())


def test_log_of_a_seed_is_repeated_in_one_process() -> None:
    policies = every_policy()
    one, other = (live(workload("fifo"), policies["fifo"]())[0] for _ in range(2))
    assert [encode(record) for record in one] == [encode(record) for record in other]

"""The end of a replica's process, as real interpreters: forked replicas of other tests do not run exit handlers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.integration.torch_forks import SCRIPTS, free_port


@pytest.mark.parametrize("sync", ["ring", "central"])
def test_no_thread_of_the_process_group_outlives_the_training(sync: str) -> None:
    # a thread of gloo that releases a tensor while the interpreter shuts down aborts the process (SIGABRT)
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    replicas = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / "threads_at_exit.py")],
            env={**shared, "RANK": str(rank), "SYNC": sync},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [replica.communicate(timeout=240)[0] for replica in replicas]
    assert [replica.returncode for replica in replicas] == [0, 0]
    assert all("trained with 2" in text and text.endswith("left 0\n") for text in said), said

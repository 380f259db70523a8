"""The store in a process of its own, as a keeper has it: the first replica leaves in place, another one joins later."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.torch.launch import Launcher
from coadapt.wire.agent import (
    Report,
    from_line,
)
from tests.integration.test_torch_elastic import (
    ENDLESS,
    alone,
    committed,
)
from tests.integration.torch_forks import (
    SCRIPTS,
    start,
    until_more_steps,
    wait,
)
from tests.waiting import until


class Keeper:
    """Speaks with the store's process in lines; knows no PyTorch."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "port"
        command = [
            sys.executable,
            "-m",
            "coadapt.torch.elastic.rendezvous_process",
            "--port-file",
            str(self.file),
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = self._read()["port"]

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._read()

    def until_there(self, *keys: str) -> None:
        line = json.dumps({"ask": "there", "job": "j", "keys": keys})
        until(lambda: self.ask(line)["there"], f"{keys} in the store")

    def resize(self, generation: int, *members: str) -> None:
        self.notify({"kind": "resize", "generation": generation, "members": members})

    def notify(self, notice: dict[str, Any]) -> None:
        assert self.ask(json.dumps({"ask": "notify", "job": "j", "notice": notice})) == {"ok": True}

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path)
    yield made
    made.close()


def test_the_first_replica_leaves_and_another_one_joins(tmp_path: Path, keeper: Keeper) -> None:
    audit = tmp_path / "audit"
    audit.touch()
    assert keeper.file.read_text() == f"{keeper.port}\n"

    def replica(name: str, rank: int, count: int, **more: str) -> Any:
        envs = {
            "COADAPT_STORE": f"127.0.0.1:{keeper.port}",
            "COADAPT_JOB": "j",
            "COADAPT_MEMBER": name,
            "COADAPT_AUDIT": str(audit),
            "COADAPT_CHECKPOINTS": str(tmp_path / "kept"),
            "RESULT": str(tmp_path / "result"),
            "EPOCHS": ENDLESS,
            "STEP_S": "0.2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            **more,
        }
        return start(SCRIPTS / "steady.py", (), envs, tmp_path / f"{name}.out")

    replicas = {"a": replica("a", 0, 2), "b": replica("b", 1, 2)}
    try:
        until_more_steps(audit, 3)
        keeper.resize(1, "b")
        keeper.until_there("running1")
        assert wait([replicas["a"]]) == [143], (tmp_path / "a.out").read_text()
        until_more_steps(audit, 2)
        replicas["c"] = replica("c", 1, 2, COADAPT_JOIN="2")
        keeper.until_there("ready2/c")
        keeper.resize(2, "b", "c")
        keeper.until_there("running2")
        until_more_steps(audit, 2)
        keeper.notify({"kind": "stop", "generation": 3})
        assert wait([replicas["b"], replicas["c"]]) == [143, 143], (tmp_path / "b.out").read_text()
    finally:
        for process in replicas.values():
            process.kill()
    ours = committed(audit)
    theirs = alone(tmp_path / "quiet", len(ours))
    kinds = [step["replicas"] for step in ours]
    changes = [kinds[0]] + [b for a, b in itertools.pairwise(kinds) if a != b]
    assert changes == [2, 1, 2]
    for one, other in zip(ours, theirs, strict=False):
        assert [one[key] for key in ("step", "passes", "position")] == [
            other[key] for key in ("step", "passes", "position")
        ]
        assert one["parameters"] == pytest.approx(other["parameters"], abs=1e-5)
    # whoever is first reports: numbers go on, so that no report looks like one that was sent twice
    reports = [r for name in "abc" for r in _reports(tmp_path / f"{name}.out")]
    assert [report.number for report in reports] == list(range(1, len(reports) + 1))
    told = [line for report in reports for line in report.decisions]
    assert len(told) == len(set(told))


def _reports(out: Path) -> list[Report]:
    return [report for line in out.read_text().splitlines() if (report := from_line(line)) is not None]


def test_the_launcher_can_let_the_first_replica_go(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    audit.touch()
    envs = {"COADAPT_AUDIT": str(audit), "RESULT": str(tmp_path / "r"), "EPOCHS": ENDLESS, "STEP_S": "0.2"}
    launcher = Launcher([sys.executable, str(SCRIPTS / "steady.py")], envs=envs, logs=tmp_path / "logs")
    try:
        launcher.start(2)
        until_more_steps(audit, 2)
        first, second = launcher.running
        launcher.resize(1, without=[first])
        assert list(launcher.running) == [second]
        until_more_steps(audit, 2)
    finally:
        launcher.kill()


def test_the_store_ends_with_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "port"
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-m', 'coadapt.torch.elastic.rendezvous_process', '--port-file', {str(file)!r}])\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        port = json.loads(parent.stdout.readline())["port"]
        assert file.read_text() == f"{port}\n"
        parent.send_signal(signal.SIGKILL)
        # its end of the pipe is the last one: the end of file comes when it is gone
        assert parent.stdout.read() == ""
    finally:
        parent.kill()
        parent.communicate()


def test_what_is_no_question_is_answered_in_one_line(keeper: Keeper) -> None:
    for line in ("{", "[]", '{"ask":"x"}', '{"ask":"notify"}', '{"ask":"there","keyz":[]}'):
        said = keeper.ask(line)
        assert said["ok"] is False
        assert said["why"]
    assert keeper.ask('{"ask":"there","job":"j","keys":["none"]}') == {"ok": True, "there": False}

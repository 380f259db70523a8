"""The page on setting up a cluster: its commands run as they are shown, in order, with real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.cli.commands import group
from tests.waiting import DEADLINE_S

pytest.importorskip("starlette", reason="the API is not installed (the extra server)")

PAGE = (Path(__file__).parents[2] / "docs" / "set-up-a-cluster.md").read_text(encoding="utf-8")
HOME = "/var/lib/coadapt"


def shown() -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for home in ("home", "drill"):
        run(tmp_path, f"coadapt down --home {tmp_path / home}")


def run(place: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as shown; only the home, the port and the GPUs are those of the test."""
    command = command.replace(HOME, str(place / "home")).replace("127.0.0.1:8642", "127.0.0.1:0")
    if "coadapt serve" in command:
        command += " --virtual 1x2:t4 --grace-period 2"
    script = f'coadapt() {{ "{sys.executable}" -m coadapt.cli.main "$@"; }}\n{command}'
    return subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env={**os.environ, "COADAPT_HOME": str(place / "default")},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_commands_run_as_they_are_shown(place: Path) -> None:
    commands = shown()
    assert len(commands) > 15
    known = group.list_commands(None)  # type: ignore[arg-type]
    output = ""
    for command in commands:
        name = command.split()[1]
        if name == "restore" and name not in known:
            break  # what follows needs the restored home
        if "--trust-proxy" in command:  # in earnest the unit is restarted
            assert run(place, f"coadapt down --home {HOME}").returncode == 0
        done = run(place, command)
        # doctor warns where there is no PyTorch, no room or no driver, and fails on this machine or not
        assert done.returncode == 0 or name == "doctor", (command, done.stdout, done.stderr)
        output += done.stdout
    assert "Coadapt cluster in" in (place / "coadapt.service").read_text()
    assert "--standby" in (place / "coadapt-standby.service").read_text()
    secret = place / "home" / "proxy_secret"
    assert secret.stat().st_mode & 0o077 == 0
    rules = run(place, "coadapt prometheus-rules")
    assert "CoadaptNoController" in rules.stdout
    told = run(place, f"coadapt audit --home {HOME} --json")
    for action in ("serve", "token-create", "quota"):
        assert f'"action": "{action}"' in told.stdout or f'"action":"{action}"' in told.stdout


def test_page_names_every_alert_and_no_command_that_is_not_there() -> None:
    from coadapt.live import alert_rules

    for name in re.findall(r"alert: (\w+)", alert_rules()):
        assert f"`{name}`" in PAGE
    known = {*group.list_commands(None), "restore"}  # type: ignore[arg-type]
    used = set(re.findall(r"(?:^|[`$] ?|bin/)coadapt ([a-z][a-z-]+)", PAGE, re.MULTILINE))
    assert used - known == set()

"""``coadapt serve --run-as submitter``: jobs run as the users who submit them, with real Unix accounts made for the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.executors.node.accounts import (
    account_of,
    check_run_as,
    open_passages,
    own_checkpoints,
    own_code,
)
from tests.integration.serving import Served
from tests.waiting import DEADLINE_S

_CAN = os.getuid() == 0 and shutil.which("useradd") is not None
needs_root = pytest.mark.skipif(not _CAN, reason="only root makes Unix accounts and runs jobs as them")

#: Says who it is, writes beside its code and its checkpoints, and tries to read what is not its own.
SCRIPT = """
id -un
echo home=$HOME user=$USER
cat secret-of-ada.txt && echo beside > made-here
echo saved > "$COADAPT_CHECKPOINTS/state"
for path in "$1"/* "$1"/keeper/* "$1"/code/* "$1"/accounts/* "$1"/accounts/*/code/*/* "$1"/checkpoints/*; do
    [ -f "$path" ] && cat "$path" > /dev/null 2>&1 && echo "read $path"
done
for path in token job_key serve.json store.db session_key keeper/keeper.db controller.log; do
    cat "$1/$path" > /dev/null 2>&1 && echo "read $path"
done
ls "$1" > /dev/null 2>&1 && echo "listed the home"
ls "$1/code" > /dev/null 2>&1 && echo "listed code"
ls "$1/accounts" > /dev/null 2>&1 && echo "listed accounts"
for pid in /proc/[0-9]*; do
    grep -qa COADAPT_TOKEN "$pid/environ" 2>/dev/null && [ "$(stat -c %U $pid)" != "$(id -un)" ] && echo "read $pid"
done
test -d "$2" && ls "$2" > /dev/null 2>&1 && echo "listed $2"
echo done
"""


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[str, str]]:
    names = tuple(f"coadapt-{each}-{uuid.uuid4().hex[:6]}" for each in ("ada", "bob"))
    for name in names:
        subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
    yield names[0], names[1]
    for name in names:
        subprocess.run(["userdel", name], check=False)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that all users can pass through, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="coadapt-run-as-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def coadapt_as(served: Served, token: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    server = served.home.address.read_text().strip()
    envs = {**os.environ, "COADAPT_SERVER": server, "COADAPT_API_TOKEN": token}
    command = [sys.executable, "-m", "coadapt.cli.main", *words]
    return subprocess.run(
        command, env=envs, cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def token_of(served: Served, name: str) -> str:
    made = served.coadapt("token", "create", name, "--role", "user", "--json")
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["token"])


@needs_root
def test_jobs_run_as_their_users_and_read_nothing_else_of_the_home(
    users: tuple[str, str], open_path: Path
) -> None:
    ada, bob = users
    code = open_path / "work"
    code.mkdir()
    (code / "script.sh").write_text(SCRIPT)
    (code / "secret-of-ada.txt").write_text("mine\n")
    (code / "secret-of-ada.txt").chmod(0o600)
    served = Served(open_path)
    served.serve(
        *("--virtual", "1x2:t4", "--policy", "fifo", "--listen", "127.0.0.1:0"),
        *("--grace-period", "5", "--run-as", "submitter"),
    )
    home = served.home.path
    try:
        tokens = {name: token_of(served, name) for name in (ada, bob)}
        printed = {}
        for name in (ada, bob):
            words = (
                "submit",
                "--yes",
                "--name",
                "job",
                "--",
                "sh",
                "script.sh",
                str(home),
                str(home / "checkpoints" / "job-1"),
            )
            said = coadapt_as(served, tokens[name], *words, cwd=code)
            assert said.returncode == 0, said.stderr
            job = f"job-{len(printed) + 1}"
            waited = coadapt_as(served, tokens[name], "wait", job, cwd=code)
            lines = coadapt_as(served, tokens[name], "logs", job, cwd=code).stdout.splitlines()
            assert waited.returncode == 0, (waited.stdout, lines)
            printed[name] = lines
        for name, lines in printed.items():
            assert lines[:3] == [name, f"home={account_of(name).home} user={name}", "mine"]
            own = str(home / "accounts" / name / "code")
            foreign = [line for line in lines[3:-1] if not line.startswith(f"read {own}/")]
            listed = f"listed {home / 'checkpoints' / 'job-1'}"
            assert [line for line in foreign if not (name == ada and line == listed)] == []
            assert lines[-1] == "done"
        state = home / "checkpoints" / "job-1" / "state"
        assert state.owner() == ada
        assert state.parent.stat().st_mode & 0o777 == 0o700
        refused = coadapt_as(
            served, token_of(served, "nobody-has-this-name"), "submit", "--yes", "--", "true", cwd=code
        )
        assert refused.returncode == 2
        assert "there is no Unix account 'nobody-has-this-name'" in refused.stderr
        admin = served.home.token.read_text().strip()
        root = coadapt_as(served, admin, "submit", "--yes", "--", "true", cwd=code)
        assert root.returncode == 2
        assert "would run as root" in root.stderr
        assert served.coadapt("doctor").stdout.count("bad") == 0
    finally:
        served.coadapt("down")
        if served.process is not None:
            served.process.communicate(timeout=DEADLINE_S)


@needs_root
def test_daemon_of_another_user_is_ended(users: tuple[str, str], open_path: Path) -> None:
    from coadapt.executors.node.keeper_shutdown import is_locked
    from coadapt.model import JobSpec
    from tests.desk import Desk

    witness = open_path / "witness"
    witness.touch()
    witness.chmod(0o666)
    desk = Desk(open_path / "keeper", home=open_path, run_as="submitter")
    script = f"exec 9<>{witness}; flock 9; (setsid env -i sleep 600 &) ; sleep 0.1"
    desk.start(JobSpec(name="a", user=users[0], command=("sh", "-c", script)))
    desk.end("a")
    assert not is_locked(witness)
    desk.start(JobSpec(name="b", user="nobody-has-this-name", command=("true",)))
    assert "no Unix account" in str(desk.end("b"))
    desk.executor.shutdown()


def test_run_as_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="needs root"):
        check_run_as("submitter")
    check_run_as("")


def test_account_of_root_and_unknown_accounts_are_refused() -> None:
    with pytest.raises(InputError, match="as root"):
        account_of("root")
    with pytest.raises(InputError, match="no Unix account 'x y'"):
        account_of("x y")


@needs_root
def test_links_of_a_job_give_no_file_of_root_away(users: tuple[str, str], tmp_path: Path) -> None:
    account = account_of(users[0])
    secret = tmp_path / "secret"
    secret.write_text("root's")
    code, home = tmp_path / "code" / "abc", tmp_path / "home"
    code.mkdir(parents=True)
    home.mkdir()
    for directory in (code, tmp_path / "kept"):
        directory.mkdir(exist_ok=True)
        (directory / "link").symlink_to(secret)
        (directory / "file").write_text("own")
    open_passages(home)
    own_checkpoints(tmp_path / "kept", account)
    copy = own_code(home, code, account)
    assert secret.stat().st_uid == 0
    for directory in (tmp_path / "kept", copy):
        assert (directory / "file").stat().st_uid == account.uid
        assert (directory / "link").lstat().st_uid == account.uid
    assert (code / "file").stat().st_uid == 0
    assert copy.parent.stat().st_uid == 0
    assert own_code(home, code, account) == copy
    assert [path.name for path in (home / "accounts").iterdir()] == [users[0]]

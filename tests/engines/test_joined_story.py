"""A cluster of two machines that joined, as its administrator and its user see it: the real commands, API and controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.executors.node.keeper_shutdown import keeper_lock, pid_in
from tests.engines.machines import COADAPT, Machine, alive, joined
from tests.integration.serving import Served, serving
from tests.waiting import until


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as made:
        yield made


def machines_of(served: Served, *names: str) -> list[Machine]:
    made = served.coadapt("token", "create", "lab", "--role", "node", "--node", "w*")
    assert "Use it as COADAPT_NODE_TOKEN" in made.stderr
    token = made.stdout.strip()
    url = served.home.address.read_text().strip()
    found = [Machine(served.path / name, url, name, token=token) for name in names]
    until(lambda: joined(served.home) == set(names), lambda: [m.log.read_text() for m in found])
    return found


def test_two_machines_run_jobs_and_survive_their_controller(served: Served) -> None:
    served.serve(
        *("--executor", "joined", "--policy", "fifo", "--listen", "127.0.0.1:0"),
        *("--grace-period", "5s", "--lease", "10m"),
    )
    machines = machines_of(served, "w1", "w2")
    try:
        shown = served.coadapt("nodes").stdout
        assert "connected" in shown
        assert {"w1", "w2"} <= set(shown.split())
        code = served.path / "code"
        code.mkdir()
        (code / "train.sh").write_text(
            'echo "$RANK of $WORLD_SIZE on $NODE"; while test ! -e "$1"; do sleep 0.1; done\n'
        )
        (code / "job.yaml").write_text(
            f"name: wide\nworkdir: {code}\nrun: sh train.sh {served.path / 'end'}\nresources: {{accelerators: 3}}\nepochs: 1\n"
        )
        submitted = served.coadapt("submit", "--yes", str(code / "job.yaml"))
        assert submitted.returncode == 0, submitted.stderr
        until(lambda: "of 3 on" in served.coadapt("logs", "wide-1", "--rank", "2").stdout)
        # everything on the controller's machine dies at once: controller, API, supervisor, hub
        before = {pid for machine in machines for pid in _replicas(machine)}
        assert len(before) == 3
        assert served.process is not None
        victims = [served.controller(), pid_in(keeper_lock(served.home.hub)), served.process.pid]
        for pid in victims:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        served.process.communicate()
        served.serve("--executor", "joined")
        until(lambda: joined(served.home) == {"w1", "w2"})
        assert all(alive(pid) for pid in before)
        (served.path / "end").touch()
        # the API of the dead supervisor may still be ending while the new one begins: 'wait' then says that nobody answers
        until(lambda: served.coadapt("wait", "wide-1").returncode == 0)
        state = served.state()
        assert state.jobs["wide-1"].attempt == 1
    finally:
        down = served.coadapt("down")
        for machine in machines:
            machine.stop()
    assert "The hub has ended" in down.stdout


@pytest.mark.long
def test_down_stops_jobs_on_machines_that_joined(served: Served) -> None:
    served.serve(
        *("--executor", "joined", "--policy", "fifo", "--listen", "127.0.0.1:0", "--grace-period", "5s")
    )
    (machine,) = machines_of(served, "w1")
    try:
        served.submit("long")
        until(lambda: bool(served.lives("long")))
        (pid,) = served.lives("long")
        down = served.coadapt("down")
        assert down.returncode == 0, down.stderr
        assert "1 running job stopped" in down.stdout
        assert not alive(pid)
    finally:
        machine.stop()


def _replicas(machine: Machine) -> list[int]:
    from tests.engines.machines import children_of

    return children_of(machine.agent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("not-a-url",), "is no address of a controller; write https://HOST:PORT"),
        (
            ("http://127.0.0.1:1", "--virtual", "many"),
            "--virtual 'many' is not COUNT[:TYPE], for example 4:t4",
        ),
        (("http://127.0.0.1:1", "--gpus", "9999"), "--gpus '9999' must be auto or a number from 1 to"),
        (("http://127.0.0.1:1", "--token-file", "/none"), "--token-file /none: No such file or directory"),
        (("https://127.0.0.1:1", "--ca", "/none"), "the certificates in /none cannot be used"),
    ],
)
def test_impossible_options_of_join_are_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    token = {} if "--token-file" in arguments else {"COADAPT_NODE_TOKEN": "x"}
    done = subprocess.run(
        [*COADAPT, "node", "join", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **token},
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sys.platform == "linux"


@pytest.mark.long
def test_token_of_a_machine_is_good_for_nothing_else(served: Served) -> None:
    served.serve(*("--executor", "joined", "--policy", "fifo", "--listen", "127.0.0.1:0"))
    token = served.coadapt("token", "create", "lab", "--role", "node").stdout.strip()
    environment = {
        **os.environ,
        "COADAPT_API_TOKEN": token,
        "COADAPT_SERVER": served.home.address.read_text().strip(),
    }
    for command in (("ps",), ("nodes",), ("node", "gone", "w1", "--yes"), ("token", "list")):
        done = subprocess.run(
            [*COADAPT, *command], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode != 0
        assert "the role node does not permit this" in done.stderr
    user = served.coadapt("token", "create", "ada").stdout.strip()
    machine = Machine(served.path / "w1", environment["COADAPT_SERVER"], "w1", token=user)
    until(
        lambda: "the role user does not permit this" in machine.log.read_text(),
        lambda: machine.log.read_text(),
    )
    assert joined(served.home) == set()
    machine.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="a machine with another file system needs root")
def test_machine_that_does_not_share_checkpoints_is_said_at_submit(served: Served) -> None:
    served.serve("--executor", "joined", "--listen", "127.0.0.1:0", "--grace-period", "2s")
    token = served.coadapt("token", "create", "lab", "--role", "node").stdout.strip()
    # the directory of checkpoints is another one there
    hide = f'mount -t tmpfs none {served.home.checkpoints} && exec "$@"'
    machine = Machine(
        served.path / "w1",
        served.home.address.read_text().strip(),
        "w1",
        inside=("unshare", "--mount", "sh", "-c", hide, "sh"),
        token=token,
    )
    try:
        until(lambda: joined(served.home) == {"w1"}, lambda: machine.log.read_text())
        answer = served.ask("POST", "/v1/jobs", {"spec": {"name": "a", "command": ["true"]}})
        assert answer["note"].startswith("Checkpoints are kept on w1 only")
    finally:
        served.coadapt("down")
        machine.stop()


def test_machine_joins_over_tls_and_trusts_only_what_it_is_told_to(served: Served) -> None:
    cert, key = served.path / "cert.pem", served.path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl is not installed")
    served.serve(
        *("--executor", "joined", "--listen", "127.0.0.1:0", "--grace-period", "2s"),
        *("--tls-cert", str(cert), "--tls-key", str(key)),
    )
    url = served.home.address.read_text().strip()
    assert url.startswith("https://")
    token = subprocess.run(
        [*COADAPT, "token", "create", "lab", "--role", "node", "--home", str(served.home.path)],
        env={**os.environ, "COADAPT_CA_FILE": str(cert)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    doubtful = Machine(served.path / "w1", url, "w1", token=token)
    trusting = Machine(served.path / "w2", url, "w2", token=token, ca=str(cert))
    try:
        until(lambda: joined(served.home) == {"w2"}, lambda: trusting.log.read_text())
        until(lambda: "certificate" in doubtful.log.read_text(), lambda: doubtful.log.read_text())
        assert joined(served.home) == {"w2"}
        assert token not in doubtful.log.read_text()
    finally:
        served.coadapt("down")
        for machine in (doubtful, trusting):
            machine.stop()

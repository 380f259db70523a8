"""Shares between two users on a real cluster of virtual GPUs; a section of ``benchmarks.trust``, once and not in cells.

``coadapt serve --virtual 1x4:t4`` with its default policy. Two users submit equal plain scripts of one GPU, paced by a profile's step
time; the second comes when the first has all GPUs and a queue. The share of each is that of the GPU time while both have jobs that wait.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import coadapt
from benchmarks.measure import Row, show
from benchmarks.smoke import either
from coadapt.client import ENDED, Client
from coadapt.model import JobSpec, Resources, Role
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for
from coadapt.spec.code_archive import freeze
from coadapt.wire.api import JobLine, NewToken

USERS = ("alice", "bob")
#: Jobs of each user, and seconds that one trains.
JOBS, RUN_S = either(1, 16), either(1.0, 20.0)
_PAUSE_S, _START_S = 0.25, 120.0
_SCRIPT = """import sys, time
for step in range(int(sys.argv[1])):
    time.sleep(float(sys.argv[2]))
"""


def run() -> bool:
    """Prints the least and the largest share."""
    with tempfile.TemporaryDirectory(prefix="coadapt-trust-") as name, serving(Path(name) / "home") as admin:
        had, ended = shares(admin, Path(name) / "code")
    total = max(sum(had.values()), 1e-9)
    found = [had[user] / total for user in USERS]
    failed = sum(line.state != "SUCCEEDED" for line in ended)
    note = f"{total:.0f} GPU-seconds while both had jobs that waited"
    return show(
        "trust: live",
        [
            Row("two users on 4 virtual GPUs: least share", min(found), 0.42, 0.45, at_least=True, note=note),
            Row("  largest share", max(found), 0.58, 0.55),
            Row(f"  jobs of {len(ended)} that did not succeed", float(failed), 0.0),
        ],
    )


@contextlib.contextmanager
def serving(home: Path) -> Iterator[Client]:
    """A cluster with its default policy; it ends with the context."""
    cli = [sys.executable, "-m", "coadapt.cli.main"]
    command = [*cli, "serve", "--home", str(home), "--virtual", "1x4:t4", "--listen", "127.0.0.1:0"]
    home.mkdir(mode=0o700)
    with (home / "serve.out").open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        until = time.monotonic() + _START_S
        while not (home / "address").exists():
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the cluster did not start: {(home / 'serve.out').read_text().strip()}")
            time.sleep(_PAUSE_S)
        with coadapt.connect(home=str(home)) as admin:
            yield admin
    finally:
        subprocess.run([*cli, "down", "--home", str(home)], stdout=subprocess.DEVNULL, check=False)
        if server.poll() is None:
            server.terminate()
        server.wait()


def shares(admin: Client, code: Path) -> tuple[dict[str, float], list[JobLine]]:
    """GPU-seconds of each user while both have jobs that wait, and all jobs at their end."""
    code.mkdir()
    (code / "paced.py").write_text(_SCRIPT)
    digest = admin.upload(freeze(code).data)
    for number, user in enumerate(USERS):
        if number:
            _until_busy(admin)
        token = admin.create_token(NewToken(name=user)).token
        with Client(admin.url, token) as client:
            for index in range(JOBS):
                client.submit(_spec(f"{user}-{index}", digest))
    had, last = dict.fromkeys(USERS, 0.0), time.monotonic()
    while True:
        lines = list(admin.all_jobs())
        now = time.monotonic()
        waiting = {line.user for line in lines if line.state in ("QUEUED", "PREEMPTED")}
        if waiting.issuperset(USERS):
            for line in lines:
                had[line.user] += line.gpus * (now - last)
        last = now
        if all(line.state in ENDED for line in lines):
            return had, lines
        time.sleep(_PAUSE_S)


def _until_busy(admin: Client) -> None:
    """Returns when the first user has started all that fits."""
    most = min(JOBS, 4)
    until = time.monotonic() + _START_S
    while sum(line.started_at is not None for line in admin.all_jobs()) < most:
        if time.monotonic() > until:
            raise SystemExit("the first jobs did not start")
        time.sleep(_PAUSE_S)


def _spec(name: str, code: str) -> JobSpec:
    """A plain script that takes as long as so many steps of the profile on one GPU."""
    truth = shipped_profiles()["cifar10"]
    asked = spec_for(name, truth, "cifar10", replicas=1, batch=truth.limits(truth.gpu_types[0]).initial)
    step_s, _ = truth.step((1,), asked.requested_batch or 1, truth.gpu_types[0])
    return JobSpec(
        name=name,
        roles=(Role(min=1, max=1, demand=Resources(gpus=1)),),
        requested=1,
        duration_s=RUN_S,
        preemptible=True,
        code=code,
        command=(sys.executable, "paced.py", str(max(round(RUN_S / step_s), 1)), f"{step_s:.6f}"),
    )

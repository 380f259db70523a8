"""The demo: eight real PyTorch jobs on four virtual GPUs of this machine, under coadapt and under FIFO with fixed sizes.

python examples/demo/run.py

Processes, gradients, messages, checkpoints and resizes are real. Only the GPUs are virtual: ``jobs.PACES`` sets the duration of a
step, so that four GPUs fit on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from jobs import (
    JOBS,
    PACES,
    DemoJob,
    specification,
)
from show import (
    Screen,
    final_table,
)

import coadapt
from coadapt.client import Client
from coadapt.live import home_of, sign_in_link
from coadapt.spec.code_archive import freeze
from coadapt.spec.job_file import job_spec
from coadapt.wire.api import JobLine

HERE = Path(__file__).parent
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
#: Jobs of the demo take minutes, not hours, so that changes must pay off sooner.
OURS = ("change_s=6", "horizon_s=45", "every_s=10")


class Ended(NamedTuple):
    """The result of one job."""

    line: JobLine
    #: First prediction of the time from submission to the end, in seconds; None: there was none.
    predicted_s: float | None
    batches: tuple[int, ...]
    sizes: tuple[int, ...]


@contextlib.contextmanager
def serving(home: Path, policy: str, options: tuple[str, ...]) -> Iterator[Client]:
    """Run a controller in ``home``; stop it and all its jobs at the end."""
    cli = [sys.executable, "-m", "coadapt.cli.main"]
    command = [
        *cli,
        "serve",
        "--home",
        str(home),
        "--virtual",
        "1x4:t4",
        "--policy",
        policy,
        "--listen",
        "127.0.0.1:0",
    ]
    for option in options:
        command += ["--policy-option", option]
    (home / "paces").mkdir(parents=True, mode=0o700)
    for name, params in PACES.items():
        (home / "paces" / f"{name}.t4.json").write_text(json.dumps({"params": params}))
    with (home / "serve.out").open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield _connected(home, server)
    finally:
        subprocess.run([*cli, "down", "--home", str(home)], stdout=subprocess.DEVNULL, check=False)
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(signal.SIGTERM)
        server.wait()


def _connected(home: Path, server: subprocess.Popen[bytes]) -> Client:
    until = time.monotonic() + 120
    while not (home / "address").exists():
        if server.poll() is not None or time.monotonic() > until:
            sys.exit("the controller did not start: " + (home / "serve.out").read_text().strip())
        time.sleep(0.1)
    return coadapt.connect(home=str(home))


def run(
    policy: str, home: Path, *, fixed: bool, options: tuple[str, ...] = (), jobs: tuple[DemoJob, ...] = JOBS
) -> dict[str, Ended]:
    """Run all jobs under one policy; returns their results by name."""
    with serving(home, policy, options) as client, Screen(policy, sign_in_link(home_of(str(home)))) as screen:
        code = client.upload(freeze(HERE).data)
        began, waiting, names = time.monotonic(), list(jobs), {}
        lines: list[JobLine] = []
        while waiting or any(line.state not in ENDED for line in lines):
            while waiting and time.monotonic() - began >= waiting[0].arrives_s:
                job = waiting.pop(0)
                names[job.name] = _submit(client, job, code, fixed=fixed)
            lines = client.jobs(limit=100).jobs
            screen.update(client.cluster(), lines, len(waiting))
            time.sleep(0.5)
        return {name: _ended(client, job) for name, job in names.items()}


def _submit(client: Client, job: DemoJob, code: str, *, fixed: bool) -> str:
    import msgspec

    spec = job_spec(specification(job, sys.executable, fixed=fixed), where=f"job {job.name}")
    return client.submit(msgspec.structs.replace(spec, code=code))


def _ended(client: Client, job: str) -> Ended:
    line = client.job(job).line
    said = [each for each in client.predictions() if each.job == job]
    course = client.course(job).points
    return Ended(
        line=line,
        predicted_s=said[0].predicted.value - line.submitted_at if said else None,
        batches=_steps([point.batch for point in course]),
        sizes=_steps([point.gpus for point in course]),
    )


def _steps(values: list[int | None]) -> tuple[int, ...]:
    """Values in order, without repetitions in a row."""
    found: list[int] = []
    for value in values:
        if value and (not found or found[-1] != value):
            found.append(value)
    return tuple(found)


def main() -> int:
    """Both runs, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("out/demo"))
    parser.add_argument("--only", choices=["coadapt", "fifo"], help="make only one of the two runs")
    parser.add_argument(
        "--gpus",
        type=int,
        choices=range(1, 5),
        help="number of GPUs of every job under FIFO, instead of the guess of its author",
    )
    given = parser.parse_args()
    # ending the demo stops the controller and all jobs
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    found = {}
    if given.only != "fifo":
        found["coadapt"] = run("coadapt", given.out / "coadapt", fixed=False, options=OURS)
    if given.only != "coadapt":
        asked = tuple(job._replace(gpus=given.gpus or job.gpus) for job in JOBS)
        found["fifo"] = run("fifo", given.out / "fifo", fixed=True, jobs=asked)
    final_table(found, given.out)
    failed = [e.line.job for ends in found.values() for e in ends.values() if e.line.state != "SUCCEEDED"]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

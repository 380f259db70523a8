"""A long queue on a real server: forecasts, cancellations, and the take-over from a stopped controller, by the wall clock.

10,000 submissions are in the log of a new home; ``coadapt serve`` goes on from there, with the default policy and 16 virtual
GPUs. Then, with real processes: `/v1/eta`, cancellations of waiting and running jobs until the log says that they have ended,
and a standby that takes over from a controller which was stopped by SIGSTOP.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import coadapt
from benchmarks.smoke import either
from coadapt.live.serve_process import ensure_token
from coadapt.model import ControllerStarted, JobSpec, JobSubmitted, Record
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

#: Seconds: forecast, cancellation, take-over.
ETA_S, CANCEL_S, TAKE_OVER_S = 5.0, 2.0, 30.0
_PATIENCE_S = 1800.0
_BATCH = 500


def run() -> bool:
    """Prints each target beside its figure; returns whether all are met."""
    waiting, repeats = either(200, 10_000), either(1, 3)
    with tempfile.TemporaryDirectory() as directory:
        home = Home(Path(directory) / "home")
        names = _fill(home, waiting)
        with _cluster(home), coadapt.connect(home=str(home.path)) as client:
            _until(lambda: (now := client.cluster()).gpus and now.free_gpus == 0)
            figures = {
                f"/v1/eta with {waiting:,} waiting, first answer": (_timed(client.eta), ETA_S),
                f"cancel a waiting job at {waiting:,}, slowest of {repeats}": (
                    max(_cancelled(client, name) for name in names[-repeats:]),
                    CANCEL_S,
                ),
                f"cancel a running job at {waiting:,}, slowest of {repeats}": (
                    max(_cancelled(client, line.job) for line in client.jobs(state="RUNNING").jobs[:repeats]),
                    CANCEL_S,
                ),
                f"/v1/eta with {waiting:,} waiting, later answer": (_timed(client.eta), ETA_S),
                "a standby takes over from a stopped controller": (_take_over(home), TAKE_OVER_S),
            }
            print(f"forecast: {client.eta().note or 'simulated'}")
    # times by the wall clock mean little where many processes wait for each core
    print(f"load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    met = True
    for what, (seconds, most_s) in figures.items():
        met = met and seconds <= most_s
        print(f"{what}: {seconds:.2f} s (must: {most_s:g} s){'' if seconds <= most_s else '  MISSED'}")
    return met


def _fill(home: Home, count: int) -> list[str]:
    """A home in whose log so many jobs were submitted."""
    home.make()
    options = ServeOptions(
        virtual="2x8:t4", listen="127.0.0.1:0", requests_per_s=1e6, burst=10**6, grace_s=2.0
    )
    home.write_options(options)
    ensure_token(home, options)
    names = [f"sleep-{number}" for number in range(1, count + 1)]
    now = time.time()
    records = [
        Record(
            seq=seq,
            at=now,
            event=JobSubmitted(
                job=name,
                spec=JobSpec(name="sleep", user=f"user-{seq % 20}", command=("sleep", "36000")),
            ),
        )
        for seq, name in enumerate(names)
    ]
    with closing(open_store(home.store(options)).log()) as log:
        for first in range(0, count, _BATCH):
            log.append(records[first : first + _BATCH])
    return names


def _command(name: str) -> list[str]:
    return [sys.executable, "-m", "coadapt.cli.main", name]


@contextmanager
def _cluster(home: Home) -> Iterator[None]:
    """A cluster of which nothing is left afterwards."""
    try:
        with _process(home):
            yield
    finally:
        subprocess.run([*_command("down"), "--home", str(home.path)], check=True, capture_output=True)


@contextmanager
def _process(home: Home, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*_command("serve"), "--home", str(home.path), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        _until(lambda: home.address.exists() or process.poll() is not None)
        yield process
    finally:
        process.terminate()
        process.wait()


def _until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster does not get on")
        time.sleep(0.02)


def _timed(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def _cancelled(client: Any, job: str) -> float:
    """Seconds until a job that is cancelled has ended, GPUs and all."""

    def cancel() -> None:
        client.cancel(job)
        _until(lambda: client.job(job).line.state == "CANCELLED")

    return _timed(cancel)


def _take_over(home: Home) -> float:
    """Seconds from SIGSTOP of the controller until another one has begun its work."""
    with closing(open_store(home.store(home.read_options())).log()) as log, _process(home, "--standby"):
        standby = home.log("standby")
        _until(lambda: standby.exists() and "standing by" in standby.read_text())
        holder = log.holder()
        assert holder is not None
        pid, last = int(holder.owner.split("/")[2]), log.last()
        os.kill(pid, signal.SIGSTOP)

        def seen() -> bool:
            return any(isinstance(record.event, ControllerStarted) for record in log.read(last))

        try:
            return _timed(lambda: _until(seen))
        finally:
            os.kill(pid, signal.SIGCONT)
            # its successor stands by before the standby ends
            _until(lambda: "standing by" in home.log("controller").read_text())

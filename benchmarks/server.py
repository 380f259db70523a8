"""``python -m benchmarks.server``: the API under load, and how soon it is back from a long log.

2,000 jobs submitted in a minute by 8 clients, 500 agents that report every 30 s, 20 reads a second, 10,000 pending jobs present;
API and controller on one core, the generator on another; the median of three runs. CPU per request is that of the API
where all ask for the same, 8 clients (4 who read) without a pause. Policy FIFO; the executor only says yes (``server_controller``).
Latency is from when a request was due (``server_load``). ``--quick``: one run of 15 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, show
from benchmarks.server_home import build
from benchmarks.smoke import either
from coadapt.store import open_store
from coadapt.store.home import Home

SERVER, GENERATOR = 0, 1
_TICK = os.sysconf("SC_CLK_TCK")
MOST_MS = {"read": 150.0, "submit": 400.0}
MOST_CPU_MS = {"read": 3.0, "submit": 6.0, "report": 2.0}
_PATIENCE_S = 300.0


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def peak_gib(pid: int) -> float:
    """Most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / (1 << 20)
    return 0.0


@contextmanager
def process(module: str, home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """On the server's core."""
    with (home.path / f"{module}.log").open("ab") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", module, str(home.path)],
            stdout=log,
            stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, {SERVER}),
        )
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


@contextmanager
def serving(home: Home) -> Iterator[tuple[int, int]]:
    """API and controller, at work; their pids."""
    home.address.unlink(missing_ok=True)
    with process("coadapt.server", home) as api, process("benchmarks.server_controller", home) as controller:
        _until(home.address.exists, "the API does not listen", api)
        _until(lambda: _leased(home, controller.pid), "the controller does not start", controller)
        yield api.pid, controller.pid


def load(home: Home, seconds: float, *kinds: str) -> dict[str, Any]:
    """What the generator measured."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.server_load",
        str(home.path),
        str(GENERATOR),
        str(seconds),
        *kinds,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def one_run(seconds: float) -> dict[str, float]:
    """Latencies under everything at once, then CPU of each kind alone."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="coadapt-server-") as name:
        home = build(Path(name) / "home")
        with serving(home) as (api, controller):
            load(home, either(0.5, 2.0), "reads", "submits", "reports")
            began, before = time.monotonic(), (cpu_s(api), cpu_s(controller))
            all_of = load(home, seconds, "submits", "reports", "reads")
            elapsed = time.monotonic() - began
            for kind, latencies in all_of["latencies"].items():
                found[f"p99 {kind}"] = 1e3 * _p99(latencies)
                found[f"count {kind}"] = len(latencies)
            found["refused"] = sum(all_of["refused"].values())
            found["unsent"] = all_of["unsent"]
            found["busy api"] = (cpu_s(api) - before[0]) / elapsed
            found["busy controller"] = (cpu_s(controller) - before[1]) / elapsed
            for kind in MOST_CPU_MS:
                time.sleep(either(0.0, 2.0))  # what is left of the load before
                start = cpu_s(api)
                alone = load(home, max(seconds / 6, either(0.5, 3.0)), f"{kind}s!")
                count = len(alone["latencies"][kind])
                found["refused"] += sum(alone["refused"].values())
                found[f"cpu {kind}"] = 1e3 * (cpu_s(api) - start) / count
            found["memory"] = peak_gib(api)
            found["memory controller"] = peak_gib(controller)
    return found


def start_s(events: int) -> dict[str, float]:
    """Seconds from the start of the processes until the API answers and the controller is at work, each alone."""
    with tempfile.TemporaryDirectory(prefix="coadapt-start-") as name:
        home, found = build(Path(name) / "home", events=events), {}
        home.address.unlink(missing_ok=True)
        began = time.monotonic()
        with process("coadapt.server", home) as api:
            _until(home.address.exists, "the API does not listen", api)
            found["start api"] = time.monotonic() - began
        began = time.monotonic()
        with process("benchmarks.server_controller", home) as controller:
            _until(lambda: _last(home) >= events, "the controller does not start", controller)
            found["start controller"] = time.monotonic() - began
    return found


def _last(home: Home) -> int:
    with closing(open_store(home.store(home.read_options())).log()) as log:
        return log.last()


def _leased(home: Home, pid: int) -> bool:
    with closing(open_store(home.store(home.read_options())).log()) as log:
        holder = log.holder()
        return holder is not None and f"/{pid}/" in holder.owner


def _until(condition: Any, what: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(what)
        time.sleep(0.02)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else values[0]


def main() -> int:
    """1 where a must falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--events", type=int, default=1_000_000)
    given = parser.parse_args()
    quick = either(True, given.quick)
    seconds = either(1.0, 15.0 if quick else given.seconds)
    runs = [one_run(seconds) for _ in range(1 if quick else 3)]
    for run in runs:
        print(json.dumps({name: round(value, 3) for name, value in run.items()}), flush=True)
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    rows = [Row(f"p99 of {kind}s", median[f"p99 {kind}"], most, unit=" ms") for kind, most in MOST_MS.items()]
    rows += [
        Row(f"CPU per {kind}", median[f"cpu {kind}"], most, unit=" ms") for kind, most in MOST_CPU_MS.items()
    ]
    rows.append(Row("memory of the API", median["memory"], 1.0, unit=" GiB"))
    rows.append(Row("memory of the controller", median["memory controller"], 1.0, unit=" GiB"))
    rows.append(Row("requests refused, in any run", max(run["refused"] for run in runs), 0))
    rows.append(
        Row("requests that were due and never sent, in any run", max(run["unsent"] for run in runs), 0)
    )
    if not quick:
        found = start_s(given.events)
        for name in ("api", "controller"):
            rows.append(
                Row(f"start from {given.events:,} events, {name}", found[f"start {name}"], 10.0, unit=" s")
            )
    return 0 if show(f"Load (1-minute load of the machine {os.getloadavg()[0]:.1f})", rows) else 1


if __name__ == "__main__":
    sys.exit(main())

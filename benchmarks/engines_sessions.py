"""Many agents without trainers on one hub, in this process: what the hub costs at rest, and how soon the next has them all."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from tests.engines.hub_bench import HubBench
from tests.engines.machines import asked
from tests.waiting import until

from coadapt.executors.agent.session_messages import Exchange, Join
from coadapt.executors.joined import JoinedExecutor
from coadapt.executors.node.keeper_shutdown import keeper_lock, pid_in
from coadapt.model import Node
from coadapt.wire.serve_options import ServeOptions

_LEASE_S = 60.0


class _Hub(HubBench):
    def _end_agents(self) -> None:
        pass


def many_sessions(number: int, seconds: float) -> dict[str, Any]:
    """Returns CPU and memory of the hub over ``seconds``, and the seconds until another hub was heard by all agents."""
    with tempfile.TemporaryDirectory(prefix="coadapt-engines-") as scratch:
        options = ServeOptions(executor="joined", lease_s=_LEASE_S, grace_s=1.0)
        bench = _Hub(Path(scratch), JoinedExecutor, options, ())
        over, answers = threading.Event(), Counter[str]()
        try:
            for nth in range(number):
                node = Node(name=f"u{nth}", gpus=8, gpu_type="t4")
                join = Join(
                    session=f"s{nth}", nodes=(node,), machine=f"m{nth}", boot="b", shares_checkpoints=True
                )
                asked(bench.home, join)
            for nth in range(number):
                threading.Thread(target=_live, args=(bench, f"s{nth}", over, answers), daemon=True).start()
            hub = pid_in(keeper_lock(bench.home.hub))
            assert hub is not None
            before, began = _cpu_s(hub), time.monotonic()
            time.sleep(seconds)  # what is measured
            cpu = (_cpu_s(hub) - before) / (time.monotonic() - began)
            rss_mb = _rss_mb(hub)
            os.kill(hub, signal.SIGKILL)
            killed = time.monotonic()
            answers.clear()
            bench.executor.inventory()
            until(lambda: len(answers) == number, lambda: len(answers))
            adopted_s = time.monotonic() - killed
            return {"cpu": cpu, "rss_mb": rss_mb, "adopted_s": adopted_s, "load": os.getloadavg()[0]}
        finally:
            over.set()
            bench.close()


def _live(bench: HubBench, session: str, over: threading.Event, answers: Counter[str]) -> None:
    """Exchanges as an agent does that has nothing to do."""
    while not over.is_set():
        try:
            asked(bench.home, Exchange(session=session, wait_s=1.0))
            answers[session] += 1
        except msgspec.MsgspecError:
            time.sleep(0.5)  # nobody answers: tried again, as agents do


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

"""The output of the demo: progress while it runs, and the final table."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from coadapt.cli import terminal
from coadapt.cli.jobs.top import picture
from coadapt.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coadapt.wire.api import ClusterNow, JobLine

_EVERY_S = 10.0


class Screen:
    """The cluster, live on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, policy: str, url: str) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False) if sys.stdout.isatty() else None
        self._said = 0.0
        what = (
            "GPUs and batch sizes are adapted"
            if policy == "coadapt"
            else "fixed sizes, first come first served"
        )
        print(
            f"\n{policy}: {what}.\nDashboard (one-time sign-in link, valid for 5 minutes): {url}\n",
            flush=True,
        )

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, cluster: ClusterNow, lines: list[JobLine], to_come: int) -> None:
        """Show the current state."""
        if self._live is not None:
            self._live.update(picture(cluster, lines), refresh=True)
        elif time.monotonic() - self._said >= _EVERY_S:
            self._said = time.monotonic()
            held = ", ".join(f"{each.job} ({_held(each)})" for each in lines if each.gpus)
            done = sum(each.state == "SUCCEEDED" for each in lines)
            print(
                f"  {cluster.gpus - cluster.free_gpus} of {cluster.gpus} GPUs, {_jobs(done)} finished, {to_come} not submitted yet; running: {held or 'none'}",
                flush=True,
            )


def final_table(found: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Print actual and predicted JCT, GPUs and batch sizes of each job, and the averages."""
    ours, other = found.get("coadapt", {}), found.get("fifo", {})
    rows = []
    for name in ours or other:
        mine, theirs = ours.get(name), other.get(name)
        rows.append(
            [
                name,
                _jct(mine),
                _predicted(mine),
                " ".join(map(str, mine.sizes)) if mine else "-",
                " ".join(map(str, mine.batches)) if mine else "-",
                _jct(theirs),
            ]
        )
    print()
    terminal.say_table(["JOB", "JCT", "PREDICTED", "GPUS", "BATCH SIZES", "JCT UNDER FIFO"], rows)
    averages = {policy: mean(_seconds(each) for each in ends.values()) for policy, ends in found.items()}
    print(f"\n  {average_jct(averages)}")
    (out / "demo.json").write_text(json.dumps({"average_jct_s": averages}, indent=2) + "\n")
    print(f"\n  Logs, stores and checkpoints are in {out}. Nothing is left running.")


def average_jct(averages: Mapping[str, float]) -> str:
    """The average JCT of each policy that was run, in one line."""
    shown = {policy: format_duration(value) for policy, value in averages.items()}
    if len(shown) < 2:
        return "average JCT: " + ", ".join(f"{policy}: {value}" for policy, value in shown.items())
    less = 1 - averages["coadapt"] / averages["fifo"]
    compared = f"{abs(less):.0%} {'less' if less >= 0 else 'more'} than"
    return f"average JCT: coadapt: {shown['coadapt']}, {compared} FIFO with fixed sizes ({shown['fifo']})"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _held(line: JobLine) -> str:
    gpus = "1 GPU" if line.gpus == 1 else f"{line.gpus} GPUs"
    return f"{gpus}, batch {line.batch}" if line.batch else f"{gpus}, batch not chosen yet"


def _seconds(ended: Any) -> float:
    line = ended.line
    return (line.finished_at or time.time()) - line.submitted_at


def _jct(ended: Any) -> str:
    if ended is None:
        return "-"
    mark = "" if ended.line.state == "SUCCEEDED" else f" ({ended.line.state.lower()})"
    return format_duration(_seconds(ended)) + mark


def _predicted(ended: Any) -> str:
    return "-" if ended is None or ended.predicted_s is None else format_duration(ended.predicted_s)

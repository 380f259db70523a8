"""Coadapt: GPUs and batch sizes, chosen together.

    result = coadapt.simulate("trace.csv", policy="tiresias", cluster="16x4")
    comparison = coadapt.compare("trace.csv", ["fifo", "tiresias"], clusters=["16x4", "18x4"])
    cluster = coadapt.connect()  # the controller of this machine: cluster.submit(...), cluster.why(job), ...
    planned = coadapt.plan(samples="runs.csv", target="val_acc>=0.93", deadline="6h", gpus="t4:1..16")

All names are looked up when they are first used: importing ``coadapt`` imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "compare": "coadapt.cli.api",
    "plan": "coadapt.cli.plan_api",
    "connect": "coadapt.cli.connection",
    "Result": "coadapt.cli.result",
    "Comparison": "coadapt.cli.comparison",
}

__all__ = ["Comparison", "Result", "compare", "connect", "plan", "simulate"]


def __getattr__(name: str) -> Any:
    if name == "simulate":
        return import_module("coadapt.simulate")
    if name == "__version__":
        return import_module("importlib.metadata").version("coadapt")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'coadapt' has no attribute {name!r}")

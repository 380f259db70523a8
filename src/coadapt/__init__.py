"""Coadapt: GPUs and batch sizes, chosen together.

    result = coadapt.simulate("trace.csv", policy="tiresias", cluster="16x4")
    comparison = coadapt.compare("trace.csv", ["fifo", "tiresias"], clusters=["16x4", "18x4"])
    planned = coadapt.plan(samples="runs.csv", target="val_acc>=0.93", deadline="6h", gpus="t4:1..16")
    predicted = coadapt.predict("train.py:build_model", inputs="3x224x224", batch=64, gpu="v100")
    cluster = coadapt.connect()  # the controller of this machine: cluster.submit(...), cluster.why(job), ...

The functions are what the commands of the same names call. They answer with a ``Result``, a ``Comparison``, a ``Planned``, a ``ModelPrediction``
and a ``Client``. Each package has more to offer, as its docstring lists: ``coadapt.simulation``, ``coadapt.planning``, ``coadapt.explain``, ...

All names are looked up when they are first used: importing ``coadapt`` imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coadapt.client.client import Client
    from coadapt.live.connect import connect
    from coadapt.planning.answer import Planned
    from coadapt.planning.model_prediction import ModelPrediction, predict
    from coadapt.planning.plan_api import plan
    from coadapt.simulation.comparison import Comparison
    from coadapt.simulation.result import Result
    from coadapt.simulation.simulate_api import compare, simulate

    __version__: str
else:
    _NAMES = {
        "client.client": ("Client",),
        "live.connect": ("connect",),
        "planning.answer": ("Planned",),
        "planning.model_prediction": ("ModelPrediction", "predict"),
        "planning.plan_api": ("plan",),
        "simulation.comparison": ("Comparison",),
        "simulation.result": ("Result",),
        "simulation.simulate_api": ("compare", "simulate"),
    }

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("coadapt")
        from coadapt._lazy import attach  # here, so that the package alone imports nothing

        look_up, _ = attach(__name__, _NAMES)
        return look_up(name)

    def __dir__() -> list[str]:
        return __all__


__all__ = [
    "Client",
    "Comparison",
    "ModelPrediction",
    "Planned",
    "Result",
    "compare",
    "connect",
    "plan",
    "predict",
    "simulate",
]

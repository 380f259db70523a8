"""Virtual time: the simulated executor, ground truth, workloads, comparisons and sizing.

- ``simulate`` and ``compare``, which are ``coadapt.simulate`` and ``coadapt.compare``; their ``Result`` and ``Comparison``; ``size`` and its ``Sizing``;
- the same step by step, with files: ``Scenario``, ``Case``, ``simulate_case``, ``simulate_into``, ``Entrant``, ``parse_entrants``, ``compare_entrants``,
  ``compare_into``;
- traces: ``open_workload``, ``write_workload``, ``workload_csv``, ``generate_workload``, ``Workload``, ``Submission``, ``describe``;
- the event log of a run: ``read_events``.

Names are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.simulation.case import Case
    from coadapt.simulation.comparison import Comparison, Entrant, compare_entrants, parse_entrants
    from coadapt.simulation.generate import generate_workload
    from coadapt.simulation.result import Result, read_events
    from coadapt.simulation.scenario import Scenario
    from coadapt.simulation.simulate_api import compare, compare_into, simulate, simulate_case, simulate_into
    from coadapt.simulation.sizing import GOALS, Probe, Sizing, count_nodes, size
    from coadapt.simulation.traces import Submission, Workload, describe
    from coadapt.simulation.workload import open_workload, workload_csv, write_workload
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "case": ("Case",),
            "comparison": ("Comparison", "Entrant", "compare_entrants", "parse_entrants"),
            "generate": ("generate_workload",),
            "result": ("Result", "read_events"),
            "scenario": ("Scenario",),
            "simulate_api": ("compare", "compare_into", "simulate", "simulate_case", "simulate_into"),
            "sizing": ("GOALS", "Probe", "Sizing", "count_nodes", "size"),
            "traces": ("Submission", "Workload", "describe"),
            "workload": ("open_workload", "workload_csv", "write_workload"),
        },
    )

__all__ = [
    "GOALS",
    "Case",
    "Comparison",
    "Entrant",
    "Probe",
    "Result",
    "Scenario",
    "Sizing",
    "Submission",
    "Workload",
    "compare",
    "compare_entrants",
    "compare_into",
    "count_nodes",
    "describe",
    "generate_workload",
    "open_workload",
    "parse_entrants",
    "read_events",
    "simulate",
    "simulate_case",
    "simulate_into",
    "size",
    "workload_csv",
    "write_workload",
]

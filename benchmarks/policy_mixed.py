"""Our policy against our Sia, side by side on a mixed cluster of 64 GPUs (``benchmarks.mixed`` has the setting)."""

from __future__ import annotations

from typing import Any

from benchmarks import mixed
from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row
from benchmarks.published import CORE
from coadapt.policies import Policy
from coadapt.policies.coadapt import CoadaptPolicy
from coadapt.policies.sia import SiaPolicy


def mixed_run(policy: str, name: str, *, released: bool = False) -> dict[str, Any]:
    """The cell of one run."""
    sources = source_hash((*CORE, "policies/*.py"), setting=("mixed.py", "policy_mixed.py"))
    arguments = {"policy": policy, "workload": name, "released": released}
    return cell("mixed", arguments, sources, lambda: _run(policy, name, released))


def _run(policy: str, name: str, released: bool) -> dict[str, Any]:
    made: Policy = SiaPolicy() if policy == "sia" else CoadaptPolicy()
    done = mixed.run(mixed.workload(name), made, released=released)
    times = {
        job.id: job.finished_at - job.submitted_at
        for job in done.state.jobs.values()
        if job.finished_at is not None
    }
    return {**mixed.figures(done), "jct_s": times}


def mixed_rows() -> list[Row]:
    """Sia against what its authors' simulator gave; ours against Sia."""
    from benchmarks.policy import each, ratio

    released = mixed_run("sia", "rate10-1", released=True)
    theirs = mixed.measured("sia", "rate10-1")["avg_jct_s"]
    rows = [
        Row(
            "our Sia off the released simulator (rate10-1), %",
            100 * abs(released["avg_jct_s"] / theirs - 1),
            5.0,
            note=f"{released['avg_jct_s']:.1f} s, released {theirs:.1f} s",
        )
    ]
    pairs = [(mixed_run("coadapt", name), mixed_run("sia", name)) for name in mixed.WORKLOADS]
    value, interval = ratio(pairs)
    by_workload = ", ".join(f"{x:.3f}" for x in each(pairs))
    what = f"mixed 64 GPUs, {len(pairs)} workloads: avg JCT over our Sia's"
    rows.append(Row(what, value, 1.0, 0.90, note=f"{interval}; {by_workload}"))
    return rows

"""Our policy against our Sia, side by side on a mixed cluster of 64 GPUs (``benchmarks.mixed`` has the setting).

Sia's rounded program has many optima of which its solver takes any: it stands for the mean of several draws.
"""

from __future__ import annotations

from typing import Any

from benchmarks import mixed
from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row
from benchmarks.published import CORE
from benchmarks.smoke import either, few
from coadapt.policies._base import Policy
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.policies.sia import SiaPolicy

#: Draws of Sia, in the form compared and as released.
DRAWS, RELEASED_DRAWS = 3, 5


def mixed_run(policy: str, name: str, *, released: bool = False, seed: int = 0) -> dict[str, Any]:
    """The cell of one run."""
    sources = source_hash((*CORE, "policies/**/*.py"), setting=("mixed.py", "policy_mixed.py"))
    arguments = {"policy": policy, "workload": name, "released": released, "seed": seed}
    return cell("mixed", arguments, sources, lambda: _run(policy, name, released, seed))


def mean_run(name: str) -> dict[str, Any]:
    """Sia's draws, averaged by job."""
    draws = [mixed_run("sia", name, seed=seed)["jct_s"] for seed in range(either(1, DRAWS))]
    return {"jct_s": {job: sum(draw[job] for draw in draws) / len(draws) for job in draws[0]}}


def _run(policy: str, name: str, released: bool, seed: int) -> dict[str, Any]:
    made: Policy = SiaPolicy() if policy == "sia" else CoadaptPolicy()
    done = mixed.run(few(mixed.workload(name), 2), made, released=released, seed=seed)
    times = {
        job.id: job.finished_at - job.submitted_at
        for job in done.state.jobs.values()
        if job.finished_at is not None
    }
    return {**mixed.figures(done), "jct_s": times}


def mixed_rows() -> list[Row]:
    """Sia against what its authors' simulator gave; ours against Sia."""
    from benchmarks.policy import each, ratio

    draws = [
        mixed_run("sia", "rate10-1", released=True, seed=seed)["avg_jct_s"]
        for seed in range(either(1, RELEASED_DRAWS))
    ]
    mean = sum(draws) / len(draws)
    theirs = mixed.measured("sia", "rate10-1")["avg_jct_s"]
    rows = [
        Row(
            "our Sia off the released simulator (rate10-1), %",
            100 * abs(mean / theirs - 1),
            5.0,
            note=f"mean of {len(draws)} draws {mean:.1f} s ({min(draws):.1f} to {max(draws):.1f}), released {theirs:.1f} s",
        )
    ]
    pairs = [(mixed_run("coadapt", name), mean_run(name)) for name in few(mixed.WORKLOADS)]
    value, interval = ratio(pairs)
    by_workload = ", ".join(f"{x:.3f}" for x in each(pairs))
    what = f"mixed 64 GPUs, {len(pairs)} workloads: avg JCT over our Sia's"
    rows.append(Row(what, value, 1.0, 0.90, note=f"{interval}; {by_workload}"))
    return rows

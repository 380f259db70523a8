"""``coadapt pool``: what a file of past jobs knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coadapt.predict.history import PastJob, Pool

#: Signatures named in one line, at most.
_NAMED = 5


@click.command("pool")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else.")
def command(file: str, as_json: bool) -> None:
    """The past jobs in FILE, which 'coadapt simulate --save-pool FILE' wrote and '--pool FILE' takes.

    Jobs whose names differ in numbers and hashes only are one signature. Work is in useful examples, of jobs without a
    batch size in seconds; work and the cost of a change are medians.
    """
    from coadapt.cli import show
    from coadapt.store.pool import load

    pool = load(file)
    rows = _rows(pool)
    if as_json:
        show.say_rows(rows, as_json=True)
        return
    if not rows:
        show.say(f"{file} holds no past jobs.")
        return
    cells = [
        [
            row["signature"] or "-",
            show.count(row["jobs"]),
            show.count(row["points"]),
            show.shown(row["work"], lambda work: f"{work:,.4g}" if work < 1e4 else f"{work:.3g}"),
            show.shown(row["change_cost_s"], show.duration),
        ]
        for row in rows
    ]
    show.say_table(["SIGNATURE", "JOBS", "POINTS", "WORK", "CHANGE COST"], cells)
    if few := _too_few(pool):
        show.note(few)


def _rows(pool: Pool) -> list[dict[str, Any]]:
    """One for each signature, the largest first."""
    from coadapt.predict.history import signature

    groups: dict[str, list[PastJob]] = {}
    for job in pool.jobs:
        groups.setdefault(signature(job.name), []).append(job)
    rows = [
        {
            "signature": name,
            "jobs": len(jobs),
            "points": sum(len(job.table.rows) for job in jobs),
            "work": _median(job.total_work for job in jobs),
            "change_cost_s": _median(job.change_cost_s for job in jobs),
        }
        for name, jobs in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["jobs"], row["signature"]))


def _too_few(pool: Pool) -> str | None:
    """Which signatures have measured fewer configurations than the step-time model has parameters."""
    from coadapt.predict.history import signature
    from coadapt.predict.step_terms import NAMES

    seen: dict[str, set[tuple[str, int, int, int]]] = {}
    for job in pool.jobs:
        measured = seen.setdefault(signature(job.name), set())
        measured.update((row.gpu_type, row.nodes, row.replicas, row.atomic_batch) for row in job.table.rows)
    few = [
        f"{name or '-'} ({len(rows)})" for name, rows in sorted(seen.items()) if 0 < len(rows) < len(NAMES)
    ]
    if not few:
        return None
    more = f" and {len(few) - _NAMED} more" if len(few) > _NAMED else ""
    return (
        f"fewer configurations measured than the step-time model has parameters ({len(NAMES)}): "
        f"{', '.join(few[:_NAMED])}{more}; what is predicted from these has wide intervals"
    )


def _median(values: Iterable[float | None]) -> float | None:
    from statistics import median

    known = [value for value in values if value is not None]
    return median(known) if known else None

"""``coadapt gc``: remove what no job needs any more, and compact the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import home_option
from coadapt.cli.parameter_types import json_option

if TYPE_CHECKING:
    from coadapt.live import Plan

#: Items of each kind that are listed one by one.
_SHOWN = 20


@click.command("gc")
@home_option
@click.option("--dry-run", is_flag=True, help="Show what would go, its size and why, and remove nothing.")
@json_option
def gc(home: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove code, checkpoints and output that no job needs any more, and compact the store.

    How long things are kept after the end of a job is set by 'coadapt serve --retain'. The cluster does this by itself
    every 15 minutes while it runs. Jobs that have not ended lose nothing.

    \b
    coadapt gc --dry-run
    """
    from coadapt.live import collect_garbage, garbage_plan, home_of

    place = home_of(home)
    place.read_options()
    if dry_run:
        _show(garbage_plan(place), as_json)
        return
    done = collect_garbage(place, rebuild=True)
    rebuilt = done.rebuilt_bytes
    if as_json:
        terminal.say_json(
            {
                "items": done.items,
                "bytes": done.bytes,
                "packed": done.packed.records,
                "rebuilt_bytes": rebuilt,
            }
        )
        return
    click.echo(f"Removed {_count(done.items, 'item')} ({_size(done.bytes)}).")
    if done.packed.records:
        click.echo(f"Packed {done.packed.records:,} records into {done.packed.kept:,}.")
    if rebuilt:
        click.echo(f"Rewrote the store; it is {_size(rebuilt)} smaller.")


def _show(found: Plan, as_json: bool) -> None:
    items = sorted(found.items, key=lambda item: -item.bytes)
    if as_json:
        terminal.say_json(
            {
                "items": [
                    {"kind": item.kind, "path": str(item.path), "bytes": item.bytes, "why": item.why}
                    for item in items
                ],
                "bytes": sum(item.bytes for item in items),
                "records": found.records,
            }
        )
        return
    for item in items[:_SHOWN]:
        click.echo(f"{_size(item.bytes):>10}  {item.kind:11}  {item.path}: {item.why}")
    if len(items) > _SHOWN:
        click.echo(f"... and {len(items) - _SHOWN} more")
    total = sum(item.bytes for item in items)
    click.echo(f"{_count(len(items), 'item')}, {_size(total)} would go; nothing was removed.")
    if found.records:
        click.echo(f"{found.records:,} records of the store would be packed.")
    if found.kept_checkpoints:
        click.echo(
            f"Checkpoints of ended jobs ({_size(found.kept_checkpoints)}) are kept: 'coadapt serve --retain "
            "checkpoints=90d' would remove them 90 days after the end."
        )


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

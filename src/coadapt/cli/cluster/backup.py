"""``coadapt backup`` and ``coadapt restore``: a whole cluster in one file, and from it a new home directory."""

from __future__ import annotations

from pathlib import Path

import click

from coadapt.cli.connection import home_option


@click.command("backup")
@click.argument("file")
@home_option
@click.option(
    "--checkpoints",
    type=click.Choice(["list", "include", "none"]),
    default="list",
    help="Checkpoints of unfinished jobs: list them with size and digest, include them, or neither.",
)
def backup(file: str, home: str | None, checkpoints: str) -> None:
    """Write a backup of the cluster to FILE, as of one moment. The cluster keeps running.

    FILE holds the store, settings, keys, and the code of unfinished jobs. It is checked after it was written. Keep it
    private: it holds keys and the environment of jobs.

    \b
    coadapt backup /backups/monday.coadapt
    coadapt restore /backups/monday.coadapt --home NEW
    """
    from coadapt.live import back_up, home_of

    target = Path(file).absolute()
    done = back_up(home_of(home), target, checkpoints=checkpoints)  # type: ignore[arg-type]
    manifest = done.manifest
    click.echo(f"Wrote and checked {target} ({done.bytes:,} bytes).")
    held = sum(each.bytes for each in manifest.checkpoints)
    jobs = f"{done.jobs:,} job{'' if done.jobs == 1 else 's'}"
    what = "included" if checkpoints == "include" else "listed, not included"
    click.echo(
        f"{jobs}, {len(manifest.unfinished)} of them unfinished; "
        f"{len(manifest.checkpoints)} checkpoints of these ({held:,} bytes) {what}."
        if checkpoints != "none"
        else f"{jobs}, {len(manifest.unfinished)} of them unfinished; checkpoints were not looked at."
    )
    if manifest.without_code:
        click.echo(f"Without their code, which is not in the home: {', '.join(manifest.without_code[:5])}.")


@click.command("restore")
@click.argument("file")
@click.option(
    "--home", metavar="DIR", required=True, help="The new home directory. It must not exist, or be empty."
)
@click.option(
    "--store",
    metavar="URL",
    help="Empty PostgreSQL store to restore to: postgresql://... Default: a file in the new home.",
)
@click.option(
    "--checkpoints",
    metavar="DIR",
    help="Directory 'checkpoints' of the old home, to copy those of unfinished jobs from.",
)
@click.option(
    "--missing-checkpoints",
    type=click.Choice(["restart", "hold"]),
    default="restart",
    help="Jobs whose checkpoints are not there: restart them from their beginning, or pause them.",
)
@click.option("--hold", is_flag=True, help="Pause all jobs, so that nothing runs: for a look or a drill.")
def restore(
    file: str,
    home: str,
    store: str | None,
    checkpoints: str | None,
    missing_checkpoints: str,
    hold: bool,
) -> None:
    """Make the new home directory DIR from the backup FILE, which is only read.

    Jobs that waited wait again. Jobs that ran continue from their checkpoints, as new attempts. The old cluster must be
    stopped, and must not be served again, because both would run the same jobs. If its home is on this machine, 'serve'
    refuses it from now on.

    \b
    coadapt restore monday.coadapt --home /var/lib/coadapt --checkpoints /mnt/rescued/checkpoints
    coadapt restore monday.coadapt --home /tmp/drill --hold
    """
    from coadapt.errors import InputError
    from coadapt.live import home_of, restore_home, restore_lines

    if store is not None and "://" not in store:
        raise InputError(f"--store {store}: only a URL postgresql://... can be named; a file is in the home")
    place = home_of(home)
    found = restore_home(
        Path(file),
        place,
        store=store,
        checkpoints=None if checkpoints is None else Path(checkpoints),
        missing_checkpoints=missing_checkpoints,  # type: ignore[arg-type]
        hold=hold,
    )
    for line in restore_lines(found, place):
        click.echo(line)

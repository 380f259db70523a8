"""A restore in the middle: a backup under load, the death of the cluster, and a new home that goes on.

What was submitted after the backup is not there, as ``restore`` says; the user asks for it again. Nothing else may be lost,
run twice, or be left of the old home.
"""

from __future__ import annotations

from contextlib import closing

from benchmarks.chaos_user import User
from benchmarks.chaos_world import World
from coadapt.live.backup import folded
from coadapt.model import JobSubmitted
from coadapt.store import open_store
from coadapt.store.home import Home


def back_up(world: World) -> str:
    """Writes a backup while everything goes on; returns its path, empty if that was not possible just now."""
    file = world.path / f"backup-{len(world.former)}.coadapt"
    file.unlink(missing_ok=True)
    done = world.command("backup", str(file), "--home", str(world.home.path), "--checkpoints", "include")
    return str(file) if done.returncode == 0 else ""


def restore(world: World, user: User, file: str) -> None:
    """Kills the cluster, and has another one go on from the backup. The user must do nothing meanwhile."""
    world.kill_everything()
    home = Home(world.path / f"restored-{len(world.former)}")
    done = world.command("restore", file, "--home", str(home.path))
    if "still run; both would run the same jobs" in done.stderr:
        # daemons that a killed keeper left in its control groups: the operator ends them, as he is told to
        ended = world.command("down", "--home", str(world.home.path))
        if ended.returncode:
            raise RuntimeError(f"down: {ended.stderr}")
        done = world.command("restore", file, "--home", str(home.path))
    if done.returncode or "What was submitted or changed after that is not there." not in done.stdout:
        raise RuntimeError(f"restore: {done.stdout}{done.stderr}")
    world.move_to(home)
    user.forget(_known(home))


def _known(home: Home) -> set[str]:
    store = open_store(home.store(home.read_options()))
    with closing(store.log()) as log, closing(store.inbox()) as inbox:
        waiting = {event.job for event in inbox.waiting() if isinstance(event, JobSubmitted)}
        return set(folded(log).jobs) | waiting

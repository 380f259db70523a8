"""``python -m coadapt.live.pilot_renewal HOME``: submits the successor of a pilot before its time limit, while jobs run.

The supervisor runs it now and then. It keeps nothing: which pilots there are is in ``HOME/pilots``, what became of them is asked
of Slurm, by name. A pilot that the user has cancelled has no successor.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from coadapt.errors import CoadaptError
from coadapt.executors import PilotSeen, cancel_pilots, find_executor, pilots_seen, submit_script
from coadapt.store.home import Home, write_private

log = logging.getLogger(__name__)
#: A successor is submitted a tenth of the time limit before its end, but not earlier or later than this, and after a quarter of the time at
#: the earliest: it may have to wait in the queue, and jobs move when it is there.
_LEAST_S, _MOST_S, _PART, _LATEST_PART = 300.0, 1800.0, 0.1, 0.75
#: Seconds between two looks, and for all pilots to end.
RENEWAL_S = 15.0
_END_S = 90.0


def directory_of(home: Home) -> Path:
    """Returns the directory with the scripts of pilots."""
    return home.path / "pilots"


def keep_pilot(home: Home, name: str, script: str) -> None:
    """Has a pilot renewed from now on."""
    directory_of(home).mkdir(mode=0o700, exist_ok=True)
    write_private(directory_of(home) / name, script.encode())


def forget_pilots(home: Home) -> list[str]:
    """Has no pilot renewed any more; returns their names."""
    found = _scripts(home)
    for path in found:
        path.unlink()
    if directory_of(home).exists():
        directory_of(home).rmdir()
    return [path.name for path in found]


def end_pilots(home: Home) -> list[str]:
    """Gives all nodes of pilots back; returns what to tell the user. CoadaptError if Slurm does not end them."""
    names = [path.name for path in _scripts(home)]
    if not names:
        return []
    cancel_pilots(names)
    until = time.monotonic() + _END_S
    while left := pilots_seen(names):
        if time.monotonic() > until:
            raise CoadaptError(
                f"batch jobs have not ended: {', '.join(each.job for each in left)}; see 'squeue'"
            )
        time.sleep(0.2)
    forget_pilots(home)
    return ["Gave the nodes of Slurm back."]


def renew(home: Home) -> list[str]:
    """Submits successors of pilots that end soon, if jobs run; returns the new job ids."""
    scripts = {path.name: path for path in _scripts(home)}
    if not scripts:
        return []
    options = home.read_options()
    seen = pilots_seen(sorted(scripts))
    submitted = []
    for name, path in scripts.items():
        lives = [each for each in seen if each.name == name and each.state != "ending"]
        if not lives:
            log.info("pilot %s has ended; it is not renewed any more", name)
            path.unlink(missing_ok=True)
        elif is_due(lives) and find_executor(options.executor).running_jobs(home, options):
            submitted.append(submit_script(path.read_text()))
            log.info("pilot %s ends soon; submitted batch job %s as its successor", name, submitted[-1])
    return submitted


def is_due(lives: Sequence[PilotSeen]) -> bool:
    """Whether the batch jobs of one pilot need a successor: none waits, and the last of them ends soon."""
    if any(each.state == "waiting" or each.left_s is None or each.limit_s is None for each in lives):
        return False
    last = max(lives, key=lambda each: each.left_s or 0.0)
    assert last.left_s is not None
    assert last.limit_s is not None
    early_s = min(max(last.limit_s * _PART, _LEAST_S), _MOST_S, last.limit_s * _LATEST_PART)
    return last.left_s <= early_s


def _scripts(home: Home) -> list[Path]:
    found = directory_of(home)
    return sorted(path for path in found.iterdir() if not path.name.startswith(".")) if found.exists() else []


def main() -> int:
    """Looks once; an error that its user can mend is one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        renew(Home(Path(sys.argv[1])))
    except CoadaptError as error:
        log.warning("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A keeper that is killed at the n-th point, n in DIR/fuse: before and after every write to its journal and every start.

A keeper without that file lasts; how many points it passed is in DIR/passed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coadapt.executors.node import journal, keeper, processes, rendezvous_stores

directory = Path(sys.argv[1])
fuse = directory / "fuse"
n = int(fuse.read_text()) if fuse.exists() else 0
passed = 0


def burn() -> None:
    global passed
    passed += 1
    (directory / "passed").write_text(str(passed))
    if passed == n:
        fuse.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    def burning(*arguments: Any, **options: Any) -> Any:
        burn()
        done = function(*arguments, **options)
        burn()
        return done

    return burning


if __name__ == "__main__":
    for name in ("accept", "leads", "moved", "released", "ended"):
        setattr(journal.Journal, name, fused(getattr(journal.Journal, name)))
    processes.start = fused(processes.start)
    rendezvous_stores.Store.__init__ = fused(rendezvous_stores.Store.__init__)  # type: ignore[method-assign]
    sys.exit(keeper.main())

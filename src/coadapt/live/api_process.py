"""``python -m coadapt.live.api_process HOME``: the API as ``coadapt serve`` starts it.

It is ``coadapt.server``, which also counts its progress in ``HOME/api.progress``: the supervisor replaces it if its event
loop stands still.
"""

from __future__ import annotations

from collections.abc import Callable

from coadapt.live.controller_progress import ProgressFile
from coadapt.server.__main__ import main
from coadapt.store.home import Home


def _progress(home: Home) -> Callable[[], None]:
    return ProgressFile(home.progress("api")).advanced


if __name__ == "__main__":
    main(_progress)

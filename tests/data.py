"""Where the shared measurements are, for tests marked ``data``."""

from __future__ import annotations

import os
from pathlib import Path


def data_dir() -> Path | None:
    """The folder of shared measurements: $COADAPT_DATA, else ../shared/data; None if there is none."""
    named = os.environ.get("COADAPT_DATA")
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    return path if path.is_dir() else None

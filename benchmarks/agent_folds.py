"""Five folds of one task, adaptive and fixed, in one process: ``python -m benchmarks.agent_folds folds OPTIONS``."""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.agent_worker import learn


def folds(options: dict[str, Any]) -> dict[str, Any]:
    """[adaptive, fixed] of every fold."""
    rules = ("adaptive", "fixed")
    return {
        "pairs": [
            [learn({**options, "fold": fold, "batch": rule}) for rule in rules]
            for fold in range(options["folds"])
        ]
    }


if __name__ == "__main__":
    print("ANSWER " + json.dumps(folds(json.loads(sys.argv[2]))), flush=True)

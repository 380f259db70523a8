"""The store of predictions as tools use it: what cannot be kept is said once, and the tool goes on.

A user asks when a run will end; that a disk is full or a home read-only must not stand between him and the answer.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from coadapt.cli import show
from coadapt.errors import CoadaptError
from coadapt.predict import Estimate
from coadapt.store.predictions import Prediction, Predictions

T = TypeVar("T")


class Kept:
    """What one tool has shown. The file is opened for each call and closed again: a tool may run for days."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._broken = False

    def keep(
        self,
        subject: str,
        method: str,
        left: Estimate,
        *,
        done: float | None,
        mark: int | None = None,
        mark_s: float | None = None,
    ) -> int | None:
        """Keeps a prediction that is being shown and gives its id; None where that is not possible."""
        shown = Prediction(
            tool=self._tool,
            subject=subject,
            method=method,
            value_s=left.value,
            low_s=left.low,
            high_s=left.high if left.high < float("inf") else None,
            done=done,
            shown_at=time.time(),
            mark=mark,
            mark_s=mark_s,
        )
        return self._with_store(lambda store: store.add(shown), None)

    def waiting(self, subject: str) -> list[Prediction]:
        """What this tool has said about a subject and has not been judged."""
        return self._with_store(lambda store: store.waiting(self._tool, subject), [])

    def learn(self, actual_s: dict[int, float]) -> None:
        """How long it really took from each of these predictions on."""

        def tell(store: Predictions) -> None:
            for number, seconds in actual_s.items():
                store.learn(number, seconds)

        self._with_store(tell, None)

    def _with_store(self, use: Callable[[Predictions], T], otherwise: T) -> T:
        if self._broken:
            return otherwise
        try:
            with Predictions() as store:
                return use(store)
        except (CoadaptError, OSError, sqlite3.Error) as error:
            self._broken = True
            show.note(f"predictions are not kept: {' '.join(str(error).split())}")
            return otherwise

"""The ledger of predictions: every prediction that a tool has shown, and what really happened, once that is known.

It is one small SQLite file per user. Tools open it for one short transaction at a time and wait a few seconds for each
other, so that any number of them may run at once. Its size is bounded: the oldest predictions are removed. A power cut
may cost the last predictions (WAL mode, ``synchronous=NORMAL``), never the file.

Tools use it through ``Kept``: if a prediction cannot be stored (a full disk, a read-only home), that is reported once,
and the tool continues, because the user has asked for the prediction and not for the ledger.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from msgspec.structs import asdict

from coadapt import progress
from coadapt.errors import CoadaptError, InputError
from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.store.home import home
from coadapt.store.sqlite import Database

LIMIT = 10_000
#: Seconds that a tool waits for another that is writing.
_PATIENCE_S = 5.0
_FIELDS = "id, shown_at, tool, subject, method, done, value_s, low_s, high_s, actual_s, mark, mark_s"
_TABLES = """
CREATE TABLE IF NOT EXISTS predictions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    shown_at REAL NOT NULL,
    tool TEXT NOT NULL,
    subject TEXT NOT NULL,
    method TEXT NOT NULL,
    done REAL,
    value_s REAL NOT NULL,
    low_s REAL NOT NULL,
    high_s REAL,
    actual_s REAL,
    mark INTEGER,
    mark_s REAL
);
CREATE INDEX IF NOT EXISTS predictions_waiting ON predictions (tool, subject) WHERE actual_s IS NULL
"""


class Prediction(Fact, frozen=True):
    """Seconds until an end, with their 80% interval, as shown by a tool."""

    tool: str
    #: Subject of the prediction: a log file, a model, a job.
    subject: str
    method: str
    value_s: float
    low_s: float
    #: None: it may never end.
    high_s: float | None
    #: Share of the work that was done; None where that is not known.
    done: float | None = None
    #: Wall clock, seconds since 1970.
    shown_at: float = 0.0
    #: Given by the store.
    id: int = 0
    #: Actual seconds from then on; None until known.
    actual_s: float | None = None
    #: Place in the subject at which it was made, and the subject's clock there; used by the tool to find the place again.
    mark: int | None = None
    mark_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys; without the mark, which means something to its tool only."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("mark")}


class Predictions:
    """The store. Every call is one transaction; InputError where the file cannot be used."""

    def __init__(
        self, path: Path | None = None, *, limit: int = LIMIT, timeout_s: float = _PATIENCE_S
    ) -> None:
        self.path, self._limit = default_file() if path is None else path, limit
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the directory {self.path.parent}: {error.strerror}") from None
        self._database = Database(
            self.path,
            synchronous="NORMAL",
            holds="predictions",
            tables=_TABLES,
            version=1,
            timeout_s=timeout_s,
        )

    def __enter__(self) -> Predictions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, shown: Prediction) -> int:
        """Stores a prediction and returns its id; removes the oldest if there are too many."""
        values = [getattr(shown, name) for name in _FIELDS.split(", ")[1:]]
        if any(isinstance(value, float) and not math.isfinite(value) for value in values):
            raise InputError(f"a prediction of {shown.subject} is not a number: {shown}")
        with self._database.transaction() as connection:
            marks = ", ".join("?" * len(values))
            names = _FIELDS.removeprefix("id, ")
            cursor = connection.execute(f"INSERT INTO predictions ({names}) VALUES ({marks})", values)
            number = cursor.lastrowid
            assert number is not None
            connection.execute("DELETE FROM predictions WHERE id <= ?", (number - self._limit,))
        return number

    def learn(self, number: int, actual_s: float) -> Prediction:
        """Stores how long it really took from prediction ``number`` on, and returns the prediction."""
        if not (math.isfinite(actual_s) and actual_s >= 0):
            raise InputError(f"an actual time of {actual_s:g} s is not possible")
        with self._database.transaction() as connection:
            connection.execute("UPDATE predictions SET actual_s = ? WHERE id = ?", (actual_s, number))
        return self.one(number)

    def one(self, number: int) -> Prediction:
        """Returns the prediction with id ``number``; InputError if there is none."""
        # larger than SQLite's integers
        found = self._read("WHERE id = ?", number) if 0 < number < 2**63 else []
        if not found:
            ids = self._database.rows("SELECT min(id), max(id) FROM predictions")[0]
            known = "none is kept" if ids[0] is None else f"kept are {ids[0]} to {ids[1]}"
            raise InputError(f"there is no prediction {number}; {known} in {self.path}")
        return found[0]

    def all(self) -> list[Prediction]:
        """Returns all predictions, oldest first."""
        return self._read("")

    def waiting(self, tool: str, subject: str) -> list[Prediction]:
        """Returns the predictions of a tool about a subject whose outcome is not known yet."""
        return self._read("WHERE actual_s IS NULL AND tool = ? AND subject = ?", tool, subject)

    def _read(self, where: str, *values: object) -> list[Prediction]:
        names = _FIELDS.split(", ")
        rows = self._database.rows(f"SELECT {_FIELDS} FROM predictions {where} ORDER BY id", *values)
        return [Prediction(**dict(zip(names, row, strict=True))) for row in rows]


def default_file() -> Path:
    """Returns the default path of the ledger."""
    return home() / "predictions.db"


def kept_predictions() -> list[Prediction]:
    """Returns all stored predictions, oldest first; does not create the file."""
    if not default_file().exists():
        return []
    with Predictions() as store:
        return store.all()


def tell_actual(number: int, actual_s: float) -> tuple[Prediction, float | None]:
    """Stores the actual time from prediction ``number`` on; returns the prediction, and the time that was stored before."""
    if actual_s <= 0:
        raise InputError(f"--actual {number}: a run takes more than 0 seconds")
    if not default_file().exists():
        raise InputError(
            f"there is no prediction {number}: no predictions are stored in {default_file().parent}"
        )
    with Predictions() as store:
        before = store.one(number).actual_s
        return store.learn(number, actual_s), before


T = TypeVar("T")


class Kept:
    """The predictions of one tool. The file is opened for each call and closed again, because a tool may run for days."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._broken = False

    def keep(
        self,
        subject: str,
        method: str,
        left: Interval,
        *,
        done: float | None,
        mark: int | None = None,
        mark_s: float | None = None,
    ) -> int | None:
        """Stores a prediction that is being shown and returns its id; None if it cannot be stored.

        Args:
            subject: What the prediction is about: a log file, a model, a job.
            method: Method of the prediction.
            left: Seconds left, with their interval.
            done: Share of the work that is done; None: not known.
            mark: Place in the subject at which the prediction was made, for the tool to find it again.
            mark_s: The subject's own clock at that place.
        """
        shown = Prediction(
            tool=self._tool,
            subject=subject,
            method=method,
            value_s=left.value,
            low_s=left.low,
            high_s=left.high,
            done=done,
            shown_at=time.time(),
            mark=mark,
            mark_s=mark_s,
        )
        return self._with_store(lambda store: store.add(shown), None)

    def waiting(self, subject: str) -> list[Prediction]:
        """Returns the predictions of this tool about a subject whose outcome is not known yet."""
        return self._with_store(lambda store: store.waiting(self._tool, subject), [])

    def learn(self, actual_s: dict[int, float]) -> None:
        """Stores how long it really took from each of these predictions on."""

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
            progress.note(f"predictions are not stored: {' '.join(str(error).split())}")
            return otherwise

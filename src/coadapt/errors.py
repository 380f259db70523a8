"""The errors that users can see.

CoadaptError
|-- InputError            invalid input of the user                      exit code 2
|   |-- StoreError        the event store cannot be read or written now, or is damaged
|   |-- LeaseHeldError    another controller holds the lease of the store
|   |-- UnknownNameError  no such policy, reader, profile: did you mean ...
|   `-- TraceError        a bad row of a trace, with file, line and column
|-- InfeasibleError       valid question whose answer is no              exit code 3
|-- SavedStateError       saved state that cannot be read                exit code 1
`-- InvariantError        bug of Coadapt or of a plug-in                 exit code 1
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Characters of a wrong name that are compared: comparing takes the square of the length.
_COMPARED = 80


def suggestion(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, ignoring case; all of them if none is near."""
    names = list(known)
    lower = {each.lower(): each for each in reversed(names)}
    close = difflib.get_close_matches(str(name)[:_COMPARED].lower(), lower, n=1)
    if close:
        return f"did you mean {lower[close[0]]!r}?"
    return f"known: {', '.join(names)}" if names else "there are none"


class CoadaptError(Exception):
    """Root of all errors; its message is one line that names value, rule and remedy."""

    exit_code = 1


class InputError(CoadaptError):
    """The input of the user is invalid."""

    exit_code = 2


class StoreError(InputError):
    """The event store cannot be read or written: it is away, full or damaged. The message names it: for logs, not for
    answers to other users.
    """


class LeaseHeldError(InputError):
    """Another controller holds the writer's lease of the event store."""


class UnknownNameError(InputError):
    """An unknown name of a ``kind``; suggests the nearest of the ``known`` ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} {name!r}; {suggestion(name, self.known)}")


class TraceError(InputError):
    """A bad row of a trace: ``message`` says what is wrong in ``file``, in which ``line`` and ``column`` where known."""

    def __init__(
        self, message: str, *, file: str, line: int | None = None, column: str | None = None
    ) -> None:
        self.file, self.line, self.column, self.problem = file, line, column, message
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: " + (f"column {column!r}: " if column else "") + message)


class InfeasibleError(CoadaptError):
    """The question was valid; the answer is no."""

    exit_code = 3


class InvariantError(CoadaptError):
    """An invariant is violated: a bug of Coadapt or of a plug-in."""


class SavedStateError(CoadaptError):
    """A saved state of another version, or a damaged one; the reader folds the log instead."""

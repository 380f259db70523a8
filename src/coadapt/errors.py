"""Every error a user can meet.

CoadaptError
|-- InputError            what the user typed or sent is wrong           exit code 2
|   |-- UnknownNameError  no such policy, reader, profile: did you mean ...
|   `-- TraceError        a row of a trace, with file, line and column
|-- InfeasibleError       a valid question whose answer is no            exit code 3
|-- SavedStateError       a saved state that this coadapt cannot read    exit code 1
`-- InvariantError        our own mistake, never the user's              exit code 1
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoadaptError(Exception):
    """Root of all errors; its message is one line that names value, rule and remedy."""

    exit_code = 1


class InputError(CoadaptError):
    """What the user typed or sent is wrong."""

    exit_code = 2


class UnknownNameError(InputError):
    """A name that nothing answers to; suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        close = difflib.get_close_matches(name, self.known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(self.known)}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class TraceError(InputError):
    """A bad row of a trace."""

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
    """Something that must always hold does not: a bug of ours or of a plug-in."""


class SavedStateError(CoadaptError):
    """A saved state of another version, or a damaged one: whoever meets it folds the log instead."""

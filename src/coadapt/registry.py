"""Names to classes, read by ``cli`` only. The core takes instances and knows no names.

A family is a mapping from name to ``"module:Class"``; third parties add to it by the entry-point
group ``coadapt.<family>``. Nothing is imported until its name is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from coadapt.errors import UnknownNameError


class Family:
    """One family of plug-ins: what it is called, and where each member lives."""

    def __init__(self, kind: str, members: Mapping[str, str], *, group: str) -> None:
        self.kind, self.group, self._members = kind, group, dict(members)

    def names(self) -> list[str]:
        """Own members in their order, then third parties'."""
        theirs = {entry.name for entry in entry_points(group=self.group)}
        return [*self._members, *sorted(theirs - self._members.keys())]

    def load(self, name: str) -> Any:
        """The class behind ``name``; UnknownNameError with a suggestion where there is none."""
        if name in self._members:
            module, _, attribute = self._members[name].partition(":")
            return getattr(import_module(module), attribute)
        for entry in entry_points(group=self.group):
            if entry.name == name:
                return entry.load()
        raise UnknownNameError(self.kind, name, self.names())

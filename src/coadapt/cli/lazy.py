"""A group of commands that imports a command's module only when that command is run."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """``members``: name -> (module, one line for the help). The module calls its command ``command``, or as "module:name" says.

    ``sections``: the same, in groups under a title each.
    """

    def __init__(
        self,
        *args: Any,
        members: Mapping[str, tuple[str, str]] | None = None,
        sections: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._sections = sections or {"Commands": members or {}}
        self._members = {name: found for group in self._sections.values() for name, found in group.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See ``click.Group``; in our order, not the alphabet's."""
        return list(self._members)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """See ``click.Group``."""
        if name not in self._members:
            return None
        module, _, attribute = self._members[name][0].partition(":")
        command = getattr(import_module(module), attribute or "command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See ``click.Group``; a wrong name gets a suggestion."""
        if args and not args[0].startswith("-") and args[0] not in self._members:
            close = difflib.get_close_matches(args[0], self._members, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(self._members)}"
            raise click.UsageError(f"unknown command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See ``click.Group``; from the table, without importing anything."""
        for title, members in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in members.items()])

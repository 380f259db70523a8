"""docs/cli.md names every command and option there is, and none that there is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from coadapt.cli.commands import group

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            member = command.get_command(ctx, name)
            assert member is not None
            yield from _commands(member, f"{path} {name}")
    yield path, command


def _options() -> set[str]:
    return {
        name
        for _, command in _commands(group, "coadapt")
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }


def test_page_names_every_command() -> None:
    assert all(path in PAGE for path, _ in _commands(group, "coadapt"))


def test_page_names_every_option_and_no_other() -> None:
    written = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", PAGE)) - {"--help"}
    assert written == _options()

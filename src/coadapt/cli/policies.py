"""``coadapt policies``: list the policies and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import json_option

if TYPE_CHECKING:
    from coadapt.plugins import Member


@click.command("policies")
@json_option
def command(as_json: bool) -> None:
    """List the policies, what each does, and its options (--policy-option) with their defaults."""
    rows = listed()
    if as_json:
        terminal.say_json(rows)
        return
    for row in rows:
        other = f" (alias {', '.join(row['aliases'])})" if row["aliases"] else ""
        terminal.say(f"{row['name']}{other}", bold=True)
        terminal.say(f"  {row['about']}")
        texts = {name: f"{name}={text_of(default)}" for name, default in row["options"].items()}
        width = max(map(len, texts.values()), default=0)
        for name, text in texts.items():
            terminal.say(f"    {text:<{width}}  {row['help'].get(name, '')}".rstrip(), dim=True)
    terminal.say()
    terminal.say("Next: coadapt simulate TRACE --policy NAME --policy-option OPTION=VALUE")


def listed() -> list[dict[str, Any]]:
    """Every policy as plain data."""
    from coadapt.plugins import POLICIES, option_help_of, options_of

    rows = []
    for member in POLICIES.members():
        options = {option.name: option.default for option in options_of(member.cls).values()}
        help_texts = option_help_of(member.cls)
        rows.append(
            {
                "name": member.name,
                "aliases": POLICIES.aliases(member.name),
                "about": about(member),
                "options": {**options, **member.preset},
                "help": {option: text for option, text in help_texts.items() if option in options},
            }
        )
    return rows


def about(member: Member) -> str:
    """Description of a policy; for a preset, the options it sets."""
    from coadapt.plugins import help_of

    if member.preset:
        preset = ", ".join(f"{option}={text_of(value)}" for option, value in member.preset.items())
        return f"{member.cls.name.capitalize()} with {preset}."  # type: ignore[attr-defined]
    return help_of(member.cls)


def text_of(value: object) -> str:
    """A default value as it is written in ``--policy-option NAME=VALUE``."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(text_of, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

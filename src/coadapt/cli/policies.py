"""``coadapt policies``: the policies and their options."""

from __future__ import annotations

import inspect
from typing import Any

import click


@click.command("policies")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def command(as_json: bool) -> None:
    """The policies, what each does, and its options for --set with their defaults."""
    from coadapt.cli import show

    rows = listed()
    if as_json:
        show.say_rows(rows, as_json=True)
        return
    for row in rows:
        other = f" (also {', '.join(row['aliases'])})" if row["aliases"] else ""
        show.say(f"{row['name']}{other}", bold=True)
        show.say(f"  {row['about']}")
        texts = {name: f"{name}={text_of(default)}" for name, default in row["options"].items()}
        width = max(map(len, texts.values()), default=0)
        for name, text in texts.items():
            show.say(f"    {text:<{width}}  {row['help'].get(name, '')}".rstrip(), dim=True)
    show.say()
    show.say("Next: coadapt simulate TRACE --policy NAME --set OPTION=VALUE")


def listed() -> list[dict[str, Any]]:
    """Every policy as plain data."""
    from coadapt.cli.families import ALIASES, OPTION_HELP, POLICIES, PRESETS
    from coadapt.cli.policy_options import options_of

    rows = []
    for name in POLICIES.names():
        if name in ALIASES:
            continue
        cls = POLICIES.load(name)
        options = {option.name: option.default for option in options_of(cls).values()}
        rows.append(
            {
                "name": name,
                "aliases": [alias for alias, meant in ALIASES.items() if meant == name],
                "about": about(name, cls),
                "options": options | PRESETS.get(name, {}),
                "help": {
                    option: text for option, text in OPTION_HELP.get(name, {}).items() if option in options
                },
            }
        )
    return rows


def about(name: str, cls: type) -> str:
    """The first line of the module that holds the policy: there it says what it does."""
    from coadapt.cli.families import PRESETS

    if name in PRESETS:
        preset = ", ".join(f"{option}={text_of(value)}" for option, value in PRESETS[name].items())
        return f"{cls.__module__.rpartition('.')[2].capitalize()} with {preset}."
    module = inspect.getmodule(cls)
    text = inspect.getdoc(module) or inspect.getdoc(cls) or ""
    return " ".join(text.split("\n\n")[0].split())


def text_of(value: object) -> str:
    """A default as one would write it after ``--set``."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(text_of, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

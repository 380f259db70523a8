"""``coadapt completion SHELL``: what makes a shell complete commands and options."""

from __future__ import annotations

import click

_HOW = {
    "bash": 'eval "$(_COADAPT_COMPLETE=bash_source coadapt)"',
    "zsh": 'eval "$(_COADAPT_COMPLETE=zsh_source coadapt)"',
    "fish": "_COADAPT_COMPLETE=fish_source coadapt | source",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_HOW)))
def command(shell: str) -> None:
    """Prints the line for your shell's start-up file: coadapt completion bash >> ~/.bashrc."""
    from coadapt.cli import show

    show.say(_HOW[shell])

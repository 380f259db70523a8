"""``coadapt cancel | pause | resume | retry JOB...``: requests that are carried out by the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client

_DOES = {
    "cancel": ("Ends jobs for good; they get time to save their state.", "cancelling"),
    "pause": ("Has jobs save their state and hold no GPUs until 'coadapt resume'.", "pausing"),
    "resume": ("Lets paused jobs run again, from where they were.", "resuming"),
    "retry": ("Runs jobs again that failed or were cancelled, from their last checkpoint.", "retrying"),
}


def _made(name: str) -> click.Command:
    text, doing = _DOES[name]

    @click.command(name, help=text)
    @click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
    @connected
    def act(client: Client, jobs: tuple[str, ...], as_json: bool) -> None:
        from coadapt.cli import live_words, show
        from coadapt.errors import InputError

        asked, refused = [], list[InputError]()
        for job in jobs:
            try:
                getattr(client, name)(job)
            except InputError as error:  # one wrong name is no reason to leave the others as they are
                refused.append(error)
                continue
            asked.append(job)
            if not as_json:
                show.say(f"{doing} {job}")
        if as_json and (asked or not refused):
            live_words.say_json([{"job": job, "request": name} for job in asked])
        for each in refused[:-1]:
            click.echo(f"coadapt: {each}", err=True)
        if refused:
            raise refused[-1]

    return act


cancel, pause, resume, retry = (_made(name) for name in _DOES)

"""How a plan looks in a terminal: the question, the answer, the table, the frontier as a chart of dots, what to run."""

from __future__ import annotations

from coadapt.cli import show
from coadapt.report.plan_dots import chart
from coadapt.report.plan_table import cells, header, shown_rows
from coadapt.report.plan_text import SHOWN, asked, headline, what_epochs_are, what_to_do
from coadapt.report.planned import Planned


def say(planned: Planned) -> None:
    """All of it but why there is no answer, which is an error's to say."""
    plan = planned.plan
    show.say(asked(planned), dim=True)
    show.say(headline(planned), bold=True)
    show.say()
    rows = [cells(planned, i) for i in shown_rows(plan, SHOWN)]
    show.say_table(header(planned), rows)
    if len(plan.rows) > len(rows):
        show.say(f"  ({len(rows)} of {len(plan.rows)} options; --json has all of them)", dim=True)
    show.say()
    for line in chart(planned):
        show.say(line)
    last = what_to_do(planned)
    if last:
        show.say()
    for said in last:
        show.say(said)
    for note in (what_epochs_are(planned), *planned.notes):
        if note:
            show.note(note)

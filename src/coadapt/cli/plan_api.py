"""``coadapt.plan(...)``: the same as the command, with the same words."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from coadapt.cli.plan_answer import answer
from coadapt.cli.plan_ask import ask
from coadapt.cli.plan_request import Request
from coadapt.configure.problem import Evidence
from coadapt.errors import InputError
from coadapt.report.planned import Planned

_KNOWN = tuple(field.name for field in fields(Request))


def plan(spec: str | None = None, *, evidence: Evidence | None = None, **given: Any) -> Planned:
    """The plan. ``print(planned)`` shows question, answer and table; ``planned.feasible`` is False where no option holds the limits.

    ``given``: see ``cli.plan_request.Request`` (``samples``, ``pool``, ``deadline``, ``target``, ``budget``, ``gpus``, ``batch``,
    ``prices``, ``confidence``, ``objective``, ...). ``evidence``: past runs as objects, in place of files.
    """
    for name in given:
        if name not in _KNOWN:
            close = difflib.get_close_matches(name, _KNOWN, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_KNOWN)}"
            raise InputError(f"plan() has no parameter {name!r}; {hint}")
    request = Request(spec=spec, **given)
    if evidence is None and request.samples is None and request.pool is None:
        raise InputError("where do times come from? give samples (past runs), pool (past jobs), or evidence")
    return answer(request, ask(request, evidence))

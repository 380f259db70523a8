"""``coadapt.plan(...)``: the same as the command, with the same words."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from coadapt.cli.plan_ask import Planned, Request, answer, ask
from coadapt.configure.problem import Evidence
from coadapt.errors import InputError

_KNOWN = tuple(field.name for field in fields(Request))


def plan(spec: str | None = None, *, evidence: Evidence | None = None, **given: Any) -> Planned:
    """The plan; ``planned.plan.chosen`` is None where no option holds the limits.

    ``given``: see ``cli.plan_ask.Request`` (``samples``, ``deadline``, ``target``, ``budget``, ``gpus``, ``batch``, ``prices``,
    ``confidence``, ``objective``, ...). ``evidence``: past runs as objects, in place of the file ``samples``.
    """
    for name in given:
        if name not in _KNOWN:
            close = difflib.get_close_matches(name, _KNOWN, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_KNOWN)}"
            raise InputError(f"plan() has no parameter {name!r}; {hint}")
    request = Request(spec=spec, **given)
    if evidence is None and request.samples is None:
        raise InputError("where do times come from? give samples, the path of past runs, or evidence")
    return answer(request, ask(request, evidence))

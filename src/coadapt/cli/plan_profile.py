"""``coadapt plan --profile``: measures by short real runs (``profile_session``), then plans with what they told."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from coadapt.cli import show
from coadapt.cli.plan_answer import answer
from coadapt.cli.plan_ask import ask
from coadapt.cli.plan_request import Request
from coadapt.cli.profile_session import Caps, Session
from coadapt.cli.profile_told import NOTHING, beside, work_of
from coadapt.configure.problem import Evidence
from coadapt.configure.scattered import scatter_of
from coadapt.errors import InputError
from coadapt.predict.samples import metric_table
from coadapt.report.planned import Planned

#: Passes of a short run from which its batch size's curve can be told from the reference's.
_TELLING = 3


def profiled(request: Request, template: str, caps: Caps, kept: str | None) -> Planned:
    """Measures, then plans."""
    if "{batch_size}" not in template and "COADAPT_BATCH_SIZE" not in template:
        raise InputError(
            "the command takes no batch size: put {batch_size} where it belongs, for example 'python train.py --bs {batch_size}'"
        )
    past = ask(request).evidence if request.samples or request.pool else _nothing_yet(request)
    session = Session(request, ask(request, past), template, caps, Path(kept) if kept else None)
    session.measure()
    ran = session.ran
    # a deadline that is a moment has come nearer while measuring
    later = replace(request, now=datetime.now())
    others = beside(ran)
    notes = [f"measured by {len(ran)} runs in {show.duration(sum(each.seconds for each in ran))}"]
    if others.setup_s is not None and request.setup_s is None:
        later = replace(later, setup_s=others.setup_s)
        notes.append(f"start and end of a run took {show.duration(others.setup_s)}, which counts as set-up")
    if others.each_s is not None and request.validation_s is None:
        later = replace(later, validation_s=others.each_s)
    if others.run_sd > 0:
        later = replace(later, run_sd=others.run_sd)
        notes.append(f"the same work took {math.expm1(others.run_sd):.0%} more or less from run to run")
    if caps.run_epochs < _TELLING and session.aimed:
        notes.append(
            f"short runs of {caps.run_epochs} epochs tell little of the metric at their batch sizes; --run-epochs {_TELLING} tells more"
        )
    evidence = session.evidence()
    # a target that nothing was known about was dropped above; now something may be known
    asked = ask(later, evidence, work_of(evidence, ran))
    scatter = scatter_of((each.batch, each.metrics) for each in ran)
    asked = replace(
        asked, scatter=scatter, options=session.possible(asked.options), more=session.left(asked.more)
    )
    planned = answer(later, asked, template)
    return replace(planned, notes=(*notes, *planned.notes))


def _nothing_yet(request: Request) -> Evidence:
    """Enough to know the options; a target waits until the metric has been seen."""
    spec = request.read_spec()
    if request.batch is None and not spec.get("batch"):
        raise InputError("which batch sizes? give --batch 32..4096, or batch in the specification")
    aimed = request.target or spec.get("target") or request.accuracy is not None
    return Evidence(metrics=metric_table([NOTHING], higher_is_better=True) if aimed else None)

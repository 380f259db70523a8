"""The command of a short run: the user's template with an option filled in, and the same in the environment.

COADAPT_BATCH_SIZE, COADAPT_WORKERS, COADAPT_EPOCHS, COADAPT_LR and COADAPT_SEED are for scripts that take no arguments. ``coadapt.torch`` is
asked to report (COADAPT_JOB), to keep the batch it is given (COADAPT_BATCH_RULE), and not to go on where another run ended (COADAPT_CHECKPOINTS).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from coadapt.cli.plan_request import Request
from coadapt.configure.problem import Option
from coadapt.configure.rates import rate_factor
from coadapt.report.planned import filled


class Command(NamedTuple):
    """What is started."""

    line: str
    environment: dict[str, str]


def filled_command(template: str, option: Option, *, epochs: int, lr: float | None, seed: int) -> Command:
    """For one option."""
    line = filled(template, batch=option.batch, workers=option.replicas, epochs=epochs, lr=lr, seed=seed)
    environment = {
        "COADAPT_BATCH_SIZE": str(option.batch),
        "COADAPT_WORKERS": str(option.replicas),
        "COADAPT_EPOCHS": str(epochs),
        "COADAPT_SEED": str(seed),
        "COADAPT_JOB": "plan",
        "COADAPT_BATCH_RULE": "fixed",
        "COADAPT_CHECKPOINTS": "",
    }
    if lr is not None:
        environment["COADAPT_LR"] = f"{lr:g}"
    return Command(line, environment)


def rate_of(request: Request, spec: Mapping[str, Any], option: Option, initial: int) -> float | None:
    """By the rule; what a batch is worth is not known before it was measured, so that AdaScale's begins as the root."""
    lr = request.lr if request.lr is not None else spec.get("lr")
    if lr is None:
        return None
    rule = request.lr_rule or str(spec.get("lr_rule") or "linear")
    return float(lr) * rate_factor("sqrt" if rule == "adascale" else rule, option.batch / initial)

"""Totals and batch sizes that a run prints besides its progress: arguments, configurations, summaries before training.

Only names that say "so many in all" count: ``epochs``, ``num_epochs``, ``max_steps``, ``Total optimization steps``; never
``epoch`` or ``steps``, which are counters in other people's logs, and never ``warmup_steps`` or ``eval_steps``.
"""

from __future__ import annotations

import re

from coadapt.model import Fact
from coadapt.prediction.training_log.patterns import COUNT, count

_BETWEEN = r"['\"]?\s{0,3}(?:[=:]|\.{3,60}|\s(?=\d))\s{0,3}['\"]?"
_EPOCHS = r"(?:(?:num|n|max|total|nb|train)[_ -]?(?:train(?:ing)?[_ -])?epochs?|epochs|total epochs needed|scheduled epochs)"
_STEPS = (
    r"(?:(?:num|n|max|total)[_ -]?(?:train(?:ing)?[_ -]|optimization[_ -])?(?:steps|iters?|iterations?|updates?)"
    r"|train[_-](?:steps|iters)|training[_ -](?:steps|iterations)|max_update)"
)
_BATCH = r"(?:(?:total|global|effective)[_ -](?:train[_ -])?batch[_ -]?size(?: \([^)]{0,60}\))?(?: is set to)?|batch[_-]?size)"
_SAMPLES = r"(?:train[_-]samples|num[_-]samples|num[_ ](?:train[_ ])?examples|data[_-]?size)"
_GPUS = r"(?:num[_-]gpus|n_?gpus?|world[_-]size|num[_-]devices)"
_NAMES = {"epochs": _EPOCHS, "steps": _STEPS, "batch": _BATCH, "samples": _SAMPLES, "gpus": _GPUS}
_ANY = re.compile(
    r"(?<![\w.-])(?:--)?(?:"
    + "|".join(f"(?P<{kind}>{names})" for kind, names in _NAMES.items())
    + f"){_BETWEEN}"
    + COUNT.replace("(", "(?P<value>", 1)
    + r"(?:\.0{0,6})?(?![\w.%/]|\s?/)",
    re.I,
)
_FOR_EPOCHS = re.compile(rf"\b(?:train(?:ing)?) for {COUNT} (epochs|steps|iterations)\b", re.I)
#: One of these is in every line that declares anything.
_HINT = re.compile(r"epoch|step|iter|batch|update|samples|examples|size|gpu|devices", re.I)
#: Of one line, at most: a dump of all arguments has many.
_MOST = 40


class Declared(Fact, frozen=True):
    """What a run declares: epochs and steps in all, samples of a step, samples of an epoch, GPUs."""

    epochs: float | None = None
    steps: float | None = None
    batch: float | None = None
    samples: float | None = None
    gpus: float | None = None


def declared(line: str) -> dict[str, float]:
    """The declarations in a line, by field of ``Declared``."""
    if not _HINT.search(line):
        return {}
    found: dict[str, float] = {}
    for match in _ANY.finditer(line):
        value = float(count(match["value"]))
        kind = next(name for name in _NAMES if match[name])
        if value > 0 and (kind != "batch" or kind not in found or "total" in match[kind].lower()):
            found[kind] = value
        if len(found) > _MOST:
            break
    if plan := _FOR_EPOCHS.search(line):
        found["epochs" if plan[2].lower() == "epochs" else "steps"] = float(count(plan[1]))
    return found

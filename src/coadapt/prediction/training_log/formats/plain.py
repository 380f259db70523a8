"""Lines that people print themselves: ``Epoch [3/90] Batch 10/390 time 0.123``, ``step 100/5000 loss=0.3``, ``Epoch 4/90 loss 0.3 time 6.20s``."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.formats.tqdm import EPOCH, EPOCH_OF
from coadapt.prediction.training_log.patterns import (
    CLOCK,
    COUNT,
    NUMBER,
    UNIT_S,
    VALIDATION,
    count,
    metrics,
    seconds,
    stamp,
)
from coadapt.prediction.training_log.reading import Reading

# all of them search the line in lower case, each only where its word is in the line
_EPOCH_OF = re.compile(EPOCH_OF.pattern)
_EPOCH = re.compile(EPOCH.pattern)
_STEP = re.compile(
    rf"(?<![\w.])(?:(?:global[_ ])?steps?|iter(?:ation)?s?|batch(?:es)?|it|updates?|s)\b[\s:=#]{{0,3}}[\[(]?\s{{0,12}}{COUNT}(?![.\w])(?:\s{{0,6}}(?:/|of)\s{{0,6}}{COUNT})?"
)
_TIME = re.compile(
    rf"(?<!eta )\b(?:(?:batch|step|iter(?:ation)?|epoch)[_ ]?)?time(?:/\w{{1,8}}|\(\d{{1,6}} iters\)|_s)?[\s:=]{{1,3}}(?:{CLOCK}|{NUMBER}\s{{0,2}}(us|ms|seconds|secs?|s|min|m|h)?\b)(?!\s?[:/])"
)
_PER = re.compile(
    rf"(?<![\d.]){NUMBER}\s?(ms|s|sec|seconds)\s?/\s?(?:it|iter|step|batch)\b|(?<![\d.]){NUMBER}\s?(?:it|iters?|steps?|batches)/s(?:ec)?\b"
)
_SINCE = re.compile(
    rf"\b(?:elapsed|total time|running time|wall(?:time)?)(?: time)?[\s:=]{{1,3}}(?:{CLOCK}|{NUMBER}\s{{0,2}}(ms|s|sec|secs|seconds|min|m|h)?\b)"
)
_LEFT = re.compile(rf"\b(?:eta|remaining|time left)[\s:=]{{1,3}}{CLOCK}(?!\w)")
_SPEED = re.compile(rf"{NUMBER}\s?(k)?\s?(?:samples|images|imgs|examples|sequences)/s")
_SINCE_WORDS = ("elapsed", "otal time", "unning time", "wall")
_LEFT_WORDS = ("eta", "remaining", "time left")
_PARTS = (
    "poch",
    "step",
    "iter",
    "atch",
    "it ",
    "it:",
    "pdate",
    "s:",
    "Step",
    "Iter",
    "EPOCH",
    "STEP",
    "ITER",
)


class Plain:
    """Reads lines that name an epoch, a step or a batch."""

    name: ClassVar[str] = "plain"
    order: ClassVar[int] = 900
    marks: ClassVar[tuple[str, ...]] = _PARTS

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        low = line.lower()
        epoch_of = _EPOCH_OF.search(low) if "epoch" in low else None
        epoch = epoch_of or (_EPOCH.search(low) if "epoch" in low else None)
        step = _STEP.search(low)
        if epoch is None and step is None:
            return None
        named = metrics(line)
        time = _TIME.search(low) if "time" in low else None
        per = _PER.search(low) if "/" in low else None
        since = _SINCE.search(low) if any(word in low for word in _SINCE_WORDS) else None
        if step is None and epoch_of is None and not (named or time or _bare(line, epoch)):
            return None  # a sentence that mentions an epoch
        if epoch is None and step is not None and not (step[2] or named or time or per or _bare(line, step)):
            return None
        left = _LEFT.search(low) if any(word in low for word in _LEFT_WORDS) else None
        speed = _SPEED.search(low) if "/s" in low else None
        return Reading(
            form="step lines"
            if epoch is None
            else "epoch lines"
            if step is None
            else "epoch and batch lines",
            epoch=float(count(epoch[1])) if epoch else None,
            epochs=float(count(epoch_of[2])) if epoch_of else None,
            step=count(step[1]) if step else None,
            steps=(count(step[2]) or None) if step and step[2] else None,
            overall=epoch is None,
            stamp_s=stamp(line),
            run_s=_span(since) if since else None,
            step_s=_per(per) if per else None,
            time_s=None if time is None or since else _span(time),
            left_s=seconds(left[1]) if left and epoch is None else None,
            samples_per_s=float(speed[1]) * (1000 if speed[2] else 1) or None if speed else None,
            epoch_end=step is None and bool(named or time),
            validation=bool(VALIDATION.match(line)),
            label="step" if epoch is None else "epoch",
            metrics=named,
        )


def _bare(line: str, found: re.Match[str] | None) -> bool:
    """Whether the line holds hardly more than the counter."""
    return found is not None and len(line) - (found.end() - found.start()) <= 40


def _span(found: re.Match[str]) -> float:
    return seconds(found[1]) if found[1] else float(found[2]) * UNIT_S[found[3] or ""]


def _per(found: re.Match[str]) -> float | None:
    if found[1]:
        return float(found[1]) * UNIT_S[found[2]]
    per_s = float(found[3])
    return 1 / per_s if per_s > 0 else None

"""tqdm bars, and those of Lightning, Hugging Face and others made with it: ``Epoch 2: 45%|####  | 176/390 [00:12<00:15, 14.1it/s, loss=1.2]``."""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec.structs import replace

from coadapt.prediction.training_log.patterns import CLOCK, COUNT, VALIDATION, count, metrics, seconds
from coadapt.prediction.training_log.reading import Reading

_BAR = re.compile(
    rf"^(?P<about>[^|%]{{0,120}}?)\s{{0,4}}\d{{1,3}}%\|[^|]{{0,300}}\|\s{{0,8}}{COUNT}/{COUNT} \[{CLOCK}<"
)
EPOCH_OF = re.compile(
    rf"\bepochs?\b[\s:=#]{{0,3}}[\[(]?\s{{0,4}}{COUNT}\s{{0,3}}(?:/|of)\s{{0,3}}{COUNT}", re.I
)
EPOCH = re.compile(rf"\bepoch\b[\s:=#]{{0,3}}[\[(]?\s{{0,4}}{COUNT}(?![\d.])", re.I)
#: Counts scaled by a suffix (unit_scale) are too coarse to be steps.
_OVER_EPOCHS = re.compile(r"(?:training )?epochs?", re.I)


class Tqdm:
    """Reads bars of tqdm."""

    name: ClassVar[str] = "tqdm"
    order: ClassVar[int] = 5
    marks: ClassVar[tuple[str, ...]] = ("%|",)

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        bar = _BAR.match(line)
        if bar is None:
            return None
        about = bar["about"].strip().rstrip(":")
        epoch_of, epoch = EPOCH_OF.search(about), EPOCH.search(about)
        done, total = count(bar[2]), count(bar[3])
        shown = Reading(
            form="progress bar",
            step=done,
            steps=total or None,
            elapsed_s=seconds(bar[4]),
            label=re.sub(r"\d+", "#", about),
            validation=bool(VALIDATION.search(about)),
            metrics=metrics(line[bar.end() :]),
        )
        if _OVER_EPOCHS.fullmatch(about):
            # a bar over epochs, not over batches
            return replace(shown, step=None, steps=None, epoch=float(done), epochs=float(total), overall=True)
        if epoch_of:
            # Lightning counts from 0 to the last: whoever folds adds the one where a 0 is seen
            return replace(shown, epoch=float(count(epoch_of[1])), epochs=float(count(epoch_of[2])))
        return replace(shown, epoch=float(count(epoch[1]))) if epoch else shown

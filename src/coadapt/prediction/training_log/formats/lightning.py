"""Lightning's rich bar (``Epoch 3/89 ━━━━━ 176/390 0:00:12 • 0:00:15 14.1it/s v_num: 0``) and its closing line; its plain bar is tqdm's."""

from __future__ import annotations

import re
from typing import ClassVar

from coadapt.prediction.training_log.patterns import CLOCK, COUNT, count, metrics, seconds
from coadapt.prediction.training_log.reading import Reading

_RICH = re.compile(rf"^Epoch {COUNT}/{COUNT}\s{{1,4}}[^\d]{{1,200}}\s{COUNT}/{COUNT}\s{CLOCK}\s•")
_END = re.compile(rf"`?Trainer\.fit`? stopped: `?max_(epochs|steps)={COUNT}`? reached")


class Lightning:
    """Reads the lines of Lightning."""

    name: ClassVar[str] = "lightning"
    order: ClassVar[int] = 6
    marks: ClassVar[tuple[str, ...]] = ("•", "Trainer.fit")

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        if found := _RICH.match(line):
            # the last epoch's number, counted from 0, stands where others write how many there are
            return Reading(
                form="Lightning",
                epoch=float(count(found[1])),
                epochs=float(count(found[2]) + 1),
                step=count(found[3]),
                steps=count(found[4]) or None,
                elapsed_s=seconds(found[5]),
                metrics=metrics(line[found.end() :]),
            )
        if found := _END.search(line):
            return Reading(form="Lightning", ended=True)
        return None

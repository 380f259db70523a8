"""What training comes to, for TensorBoard: batch, rate, noise, speed and the script's metrics, by optimizer steps.

Written by the first replica whenever measurements are reported (every few seconds and at every epoch), never inside a step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from coadapt.errors import InputError
from coadapt.model import Measurement


class Board:
    """``where`` is a directory, or a writer of the script's own: anything with ``add_scalar(name, value, step)``."""

    def __init__(self, where: Any) -> None:
        self._own = isinstance(where, (str, os.PathLike))
        if not self._own and not callable(getattr(where, "add_scalar", None)):
            raise InputError(
                f"tensorboard={where!r:.60}: a directory, or a writer with add_scalar (torch.utils.tensorboard.SummaryWriter)"
            )
        if self._own:
            summary_writer()  # so that a package that is missing is said at the start
        self._where, self._writer = where, None if self._own else where

    def write(
        self,
        step: int,
        *,
        values: dict[str, float | None],
        metrics: dict[str, float],
        found: Sequence[Measurement],
    ) -> None:
        """Called by the first replica only."""
        writer = self._open()
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(f"coadapt/{name}", value, step)
        steps = [(each.step_s, each.count, each.config) for each in found if each.count]
        if steps:
            took, _, config = steps[-1]
            writer.add_scalar("coadapt/step_s", took, step)
            if config.accumulation == 0:
                writer.add_scalar("coadapt/examples_per_s", config.batch / took, step)
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes out what is left; a writer of the script's own stays open."""
        if self._writer is not None:
            self._writer.flush()
            if self._own:
                self._writer.close()
                self._writer = None

    def _open(self) -> Any:
        # not before the first replica is known: a directory has one writer
        if self._writer is None:
            self._writer = summary_writer()(os.fspath(self._where))
        return self._writer


def summary_writer() -> Any:
    """PyTorch's own writer; one line if TensorBoard is not there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(f"tensorboard= needs the package: pip install tensorboard ({error})") from error
    return SummaryWriter

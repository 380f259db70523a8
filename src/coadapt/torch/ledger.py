"""Where a job stands: steps, passes, position in the pass, work. Plain numbers, the same on every replica."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from coadapt.predict.efficiency import efficiency


@dataclass(slots=True)
class Ledger:
    """Kept by the job, saved in every checkpoint. Work is in examples at M0."""

    #: Optimizer steps made.
    step: int = 0
    #: Whole passes done, and examples of the current one.
    passes: int = 0
    position: int = 0
    work: float = 0.0
    #: Bodies of the script's epoch loop that ran to their end.
    epoch: int = 0

    def commit(self, batch: int, length: int | None) -> bool:
        """A step of ``batch`` examples is done; True if it was the last of a pass of ``length``."""
        self.step += 1
        self.position += batch
        if length is None or self.position < length:
            return False
        self.end_pass()
        return True

    def end_pass(self) -> None:
        """The next example is the first of the next pass."""
        self.passes += 1
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        for name, value in state.items():
            setattr(self, name, value)


def work_of(batch: int, initial_batch: int, grad: tuple[float, float]) -> float:
    """Useful examples in a step. A step of M0 or less is worth all its examples: a pass at M0 is an epoch, exactly."""
    if batch <= initial_batch:
        return float(batch)
    return batch * efficiency(*grad, batch / initial_batch)

"""The errors every prediction row prints beside its own figure: RMSE, MAPE, MRE and rank correlation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr


@dataclass(frozen=True, slots=True)
class Errors:
    """Of predicted against true values; in percent, but the rank correlation. RMSE: of the mean true value."""

    rmse: float
    mape: float
    mre: float
    rank: float

    def __str__(self) -> str:
        return f"RMSE {self.rmse:.0f}% of the mean, MAPE {self.mape:.1f}%, MRE {self.mre:.1f}%, rank {self.rank:.3f}"


def errors(predicted: npt.ArrayLike, true: npt.ArrayLike) -> Errors:
    """All four; rank correlation is 1 where there is nothing to rank."""
    found, real = np.asarray(predicted, dtype=np.float64), np.asarray(true, dtype=np.float64)
    off = np.abs(found - real)
    flat = len(real) < 2 or np.ptp(real) == 0 or np.ptp(found) == 0
    return Errors(
        rmse=float(100 * np.sqrt(np.mean(off**2)) / real.mean()),
        mape=float(100 * np.mean(off / real)),
        mre=float(100 * off.sum() / real.sum()),
        rank=1.0 if flat else float(spearmanr(found, real).statistic),
    )

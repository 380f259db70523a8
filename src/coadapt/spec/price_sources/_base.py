"""The contract of a price source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class PriceSource(Protocol):
    """Provides the prices of GPUs. Its options are the keyword parameters of its class."""

    name: str

    def prices(self) -> Mapping[str, float]:
        """Current price of one GPU for an hour, by GPU type; raises an InputError if prices are not available."""

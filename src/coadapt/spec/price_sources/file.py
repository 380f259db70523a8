"""Prices from a file: a mapping of GPU types to prices in YAML or JSON, or CSV with the columns gpu and price."""

from __future__ import annotations

from collections.abc import Mapping

from coadapt.spec.prices import read_price_file


class FilePrices:
    """``path``: the file, read again at every call."""

    name = "file"
    order = 10

    def __init__(self, *, path: str) -> None:
        self.path = path

    def prices(self) -> Mapping[str, float]:
        """Read the prices from the file."""
        return read_price_file(self.path).by_type

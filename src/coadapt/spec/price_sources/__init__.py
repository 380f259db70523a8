"""Where the prices of GPUs come from: one file per source, found by name (``plugins.PRICE_SOURCES``)."""

from coadapt.spec.price_sources._base import PriceSource

__all__ = ["PriceSource"]

"""The typed client of a controller's HTTP API: ``coadapt.connect(url)``."""

from coadapt.client.client import Client
from coadapt.client.transport import NotFoundError, RefusedError, UnreachableError

__all__ = ["Client", "NotFoundError", "RefusedError", "UnreachableError"]

"""The part that lives in the training process: the only importer of PyTorch. Nothing imports it.

A training script needs five names: ``init``, and of the job it returns ``prepare``, ``loader``, ``epochs`` and ``report``
(docs/torch.md). ``python -m coadapt.torch.tools.trace_model | profile_layers | profile_operations | profile_network | launch`` are started by ``cli`` in
the user's interpreter; the first four answer with JSON lines (``coadapt.wire.tool_messages``) on standard output.

Names are looked up when they are first used: the tools do not pay for the agent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.torch.job import Job, init

__all__ = ["Job", "batches", "init", "rates"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'coadapt.torch' has no attribute {name!r}")
    try:
        if name in ("Job", "init"):
            return getattr(import_module("coadapt.torch.job"), name)
        return import_module(f"coadapt.torch.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise InputError("coadapt.torch needs PyTorch: pip install 'coadapt[torch]'") from None


def __dir__() -> list[str]:
    return __all__

"""Lazy exports: a package root names what it offers and imports a module when one of its names is first used.

    if TYPE_CHECKING:
        from coadapt.report.summary import Summary, summarise
    else:
        __getattr__, __dir__ = attach(__name__, {"summary": ("Summary", "summarise")})

    __all__ = ["Summary", "summarise"]

The imports under ``TYPE_CHECKING`` tell type checkers and readers where a name comes from, the mapping tells the interpreter, and
``__all__`` says what is exported. A unit test compares the three, and refuses a name that is also a module of the package: the import system would
put the module in the name's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from sys import modules
from typing import Any


def attach(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package root.

    Args:
        package: ``__name__`` of the root.
        names: What is exported, by the module that holds it, relative to the package.
    """
    module_of = {name: f"{package}.{module}" for module, several in names.items() for name in several}

    def look_up(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(module_of[name]), name)
        setattr(modules[package], name, found)  # the next use does not come here
        return found

    return look_up, lambda: sorted(module_of)

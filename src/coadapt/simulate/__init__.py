"""The simulated executor, ground truth, workloads and trace readers; called as a function, a simulation.

``coadapt.simulate`` is this package as well as the function that users call (``cli.api.simulate``).
Python allows a module to be both once its class says how it is called. The import it takes is the
only one that goes upwards, and is named in the layer rule.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coadapt.cli.result import Result


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Result:
        """See ``coadapt.cli.api.simulate``."""
        from coadapt.cli.api import simulate

        return simulate(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage

"""One setting for all property tests.

A run of the suite is repeatable: the same examples every time, so that a change, not luck, turns it red. To search for
new counter-examples: ``COADAPT_EXAMPLES=2000 make unit`` (random, so many examples per test).
"""

from __future__ import annotations

import os

from hypothesis import settings

_EXAMPLES = os.environ.get("COADAPT_EXAMPLES")

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("search", max_examples=int(_EXAMPLES or 100), deadline=None)
settings.load_profile("search" if _EXAMPLES else "repeatable")

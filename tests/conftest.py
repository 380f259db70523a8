"""One setting for all property tests, and a home that is not the user's.

A run of the suite is repeatable: the same examples every time, so that a change, not luck, turns it red. To search for
new counter-examples: ``COADAPT_EXAMPLES=2000 make unit`` (random, so many examples per test).
"""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.skips import SkipCheck, is_strict

_homes = itertools.count()
_EXAMPLES = os.environ.get("COADAPT_EXAMPLES")

# how long it takes to draw an example says how busy the machine is, and nothing about the test
_BUSY = [HealthCheck.too_slow]
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=_BUSY
)
settings.register_profile(
    "search", max_examples=int(_EXAMPLES or 100), deadline=None, suppress_health_check=_BUSY
)
settings.load_profile("search" if _EXAMPLES else "repeatable")


def pytest_configure(config: pytest.Config) -> None:
    if is_strict():
        config.pluginmanager.register(SkipCheck(), "skip-check")


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools keep the predictions they show: here, not where the user's are. Made by who needs it."""
    monkeypatch.setenv("COADAPT_HOME", str(tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"))

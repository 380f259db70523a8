"""Which tests may be skipped where everything is installed, as in CI; any other skip there fails the run.

A skipped test tests nothing, and nobody reads the reasons of a run that is green. ``.ci/run`` installs what tests need and sets
``COADAPT_STRICT_SKIPS=1``; elsewhere a test whose tool is missing is skipped and says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest


class Skip(NamedTuple):
    """A test, by its node id, and why it is skipped; as a rule, both are patterns as of a shell."""

    test: str
    reason: str


#: Nothing that could be installed: what the machine decides, and what a plug-in says of itself.
ALLOWED = (
    # results of floating-point arithmetic are recorded for one processor and one set of libraries
    Skip("tests/digests/test_digests.py::test_digests_are_those_recorded*", "recorded with another *"),
    # the store in memory is for tests and simulations; the same tests run for stores that keep what they are given
    Skip("tests/contracts/test_stores.py::TestMemoryLog::*", "lives in memory"),
    # simulated jobs are gone with the process that simulates them
    Skip("tests/contracts/test_executors.py::TestSimulatedExecutor::*", "dies with its controller"),
    # building it takes half an hour, which only 'make test-engines' spends
    *(
        Skip(f"tests/engines/test_kubernetes_{name}.py::*", "Kubernetes is not built *")
        for name in ("api", "contract", "engine", "failures", "story")
    ),
    # the other clock is read where there is a GPU
    Skip("tests/unit/torch/test_trainer_hooks.py::*", "on an accelerator *"),
)


def is_strict(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a skip that is not allowed fails the run."""
    return environment.get("COADAPT_STRICT_SKIPS", "") not in ("", "0")


def is_allowed(skip: Skip, rules: tuple[Skip, ...] = ALLOWED) -> bool:
    """Whether a rule names it. A bracket in a node id is no pattern: rules end before it with a star."""
    return any(fnmatchcase(skip.test, rule.test) and fnmatchcase(skip.reason, rule.reason) for rule in rules)


def skip_of(report: pytest.TestReport | pytest.CollectReport) -> Skip | None:
    """What a report says of a skip; None if it is of none. A failure that is expected is none."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return Skip(report.nodeid, reason.removeprefix("Skipped: "))


class SkipCheck:
    """Plug-in of pytest: gathers skips, and judges them at the end. xdist's workers pass theirs on."""

    def __init__(self) -> None:
        self.found: set[Skip] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A whole module may be skipped."""
        self._note(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for skip in self.refused():
            terminalreporter.write_line(
                f"SKIP NOT ALLOWED {skip.test}: {skip.reason} (tests/skips.py)", red=True
            )

    def refused(self) -> list[Skip]:
        """Skips that no rule names."""
        return sorted(skip for skip in self.found if not is_allowed(skip))

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        skip = skip_of(report)
        if skip is not None:
            self.found.add(skip)

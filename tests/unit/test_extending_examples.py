"""The examples of docs/extending.md run as they stand, and its table of families is that of ``plugins``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coadapt
from coadapt import plugins
from coadapt.executors import ExecutorPlugin
from coadapt.model import JobStarted, JobStopped, NodeJoined, Placement, Slot, StartJob, StopJob
from coadapt.plugins import FAMILIES, Family
from coadapt.runtime import Executor
from coadapt.spec.prices import checked_prices
from coadapt.testing import (
    LogFormatConformance,
    PlacerConformance,
    PolicyConformance,
    StepTimeModelConformance,
    TraceReaderConformance,
)
from coadapt.testing.planners import PlannerConformance
from tests.unit.test_module_names import resolves

ROOT = Path(__file__).parents[2]
TRACE = str(ROOT / "examples" / "small.csv")
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
#: By family: the heading of its section and the class of its example.
EXAMPLES = {
    "policy": ("Policy", "LargestFirst"),
    "placement": ("Placer", "FullestFirst"),
    "step-time model": ("Step-time model", "LinearModel"),
    "planner": ("Planner", "CautiousPlanner"),
    "trace format": ("Trace reader", "ColonFormat"),
    "log format": ("Log format", "RoundFormat"),
    "batch rule": ("Batch rule", "Doubled"),
    "learning-rate rule": ("Learning-rate rule", "CubeRoot"),
    "price source": ("Price source", "ListPrices"),
    "executor": ("Executor", "RehearsalExecutor"),
}


@cache
def namespace(heading: str) -> dict[str, Any]:
    """The names that the one Python block of a section defines."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section is not None, heading
    (block,) = re.findall(r"^```python\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {"__name__": f"example_{heading.replace(' ', '_').replace('-', '_')}"}
    exec(compile(block, f"docs/extending.md: {heading}", "exec"), found)
    return found


def example(kind: str) -> Any:
    heading, name = EXAMPLES[kind]
    return namespace(heading)[name]


def conforms(suite: Any) -> int:
    """Runs the tests of a conformance suite that take no parameters; how many there were."""
    tests = [name for name in dir(suite) if name.startswith("test_")]
    plain = [name for name in tests if not hasattr(getattr(suite, name), "pytestmark")]
    for name in plain:
        getattr(suite, name)()
    return len(plain)


def test_every_family_has_an_example() -> None:
    assert list(EXAMPLES) == [family.kind for family in FAMILIES]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_table_says_what_the_family_is(family: Family) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {family.kind} |")]
    _, package, group, required, contract, suite = [cell.strip() for cell in row.strip("|").split("|")]
    assert (package, group) == (f"`{family.package}`", f"`{family.group}`")
    assert required == ", ".join(f"`{name}`" for name in family.requires)
    assert (ROOT / "src" / "coadapt" / contract.strip("`")).is_file()
    assert not suite or resolves(suite.strip("`"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_example_is_a_whole_plug_in(family: Family) -> None:
    if family.package.startswith("coadapt.torch"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    cls = example(family.kind)
    assert [name for name in family.requires if not callable(getattr(cls, name, None))] == []
    assert not getattr(cls, "__abstractmethods__", None)
    assert cls.name not in family.names()
    assert plugins.help_of(cls) == cls.__dict__["help"]
    assert plugins.option_help_of(cls).keys() <= plugins.options_of(cls).keys()


def test_section_on_suites_runs() -> None:
    assert namespace("How a plug-in is found")["TestFifo"]().make()


def test_policy_conforms_and_runs_a_trace() -> None:
    class Suite(PolicyConformance):
        knows_roles = False

        def make(self) -> Any:
            return example("policy")()

    assert conforms(Suite()) > 3
    result = coadapt.simulate(TRACE, policy=example("policy")(at_most=2), cluster="2x4")
    assert result.summary.num_finished == result.summary.num_jobs > 0


def test_placer_conforms_and_places_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = example("placement")

    class Suite(PlacerConformance):
        def make(self) -> Any:
            return cls()

    assert conforms(Suite()) > 3
    monkeypatch.setattr(plugins.PLACERS, "load", {cls.name: cls}.__getitem__)
    result = coadapt.simulate(TRACE, policy="fifo", cluster="2x4", placement=cls.name)
    assert result.summary.num_finished == result.summary.num_jobs > 0


def test_step_time_model_conforms() -> None:
    class Suite(StepTimeModelConformance):
        def make(self) -> Any:
            return example("step-time model")()

    assert conforms(Suite()) > 5


def test_planner_conforms() -> None:
    class Suite(PlannerConformance):
        def make(self) -> Any:
            return example("planner")()

    suite = Suite()
    suite.test_answers_with_one_row_per_option_in_order("cost")
    assert conforms(suite) > 3


def test_log_format_conforms() -> None:
    class Suite(LogFormatConformance):
        def make(self) -> Any:
            return example("log format")()

        def sample(self) -> str:
            return "round 1 of 20 took 1.5 s\nround 2 of 20 took 1.4 s\n"

    assert conforms(Suite()) > 5


def test_trace_reader_conforms_and_names_the_line_of_a_mistake(tmp_path: Path) -> None:
    class Suite(TraceReaderConformance):
        def make(self) -> Any:
            return example("trace format")()

        def sample(self) -> list[str]:
            return ["a:0:1:10\n", "b:5:2:20\n"]

    assert conforms(Suite()) > 3
    (tmp_path / "jobs.txt").write_text("a:0:1:10\nb:5:two:20\n")
    from coadapt.errors import TraceError
    from coadapt.simulation.traces import open_trace

    with pytest.raises(TraceError, match="JOB:SECOND:GPUS:DURATION") as raised:
        open_trace(tmp_path / "jobs.txt", example("trace format")())
    assert raised.value.line == 2


def test_executor_has_the_whole_contract_and_starts_and_stops_a_job() -> None:
    cls = example("executor")
    for protocol in (Executor, ExecutorPlugin):
        for base in protocol.__mro__:
            for name in vars(base):
                if not name.startswith("_"):
                    assert callable(getattr(cls, name, None)), name
    executor = cls.connect(None, None, jobs=None, log="test")
    where = Placement(slots=(Slot(node="stage", replicas=1),))
    start = StartJob(id=1, job="a", attempt=1, placement=where)
    executor.apply([start, start])
    assert [(each.job, each.placement) for each in executor.inventory()] == [("a", where)]
    executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
    taken = executor.take(0.0)
    assert [type(event) for _, event in taken] == [NodeJoined, JobStarted, JobStopped]
    executor.acknowledge(taken[1][0])
    assert executor.take(0.0) == taken[2:]
    assert executor.inventory() == []


def test_batch_rule_and_rate_rule_conform() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from coadapt.torch.rule_conformance import BatchRuleConformance, RateRuleConformance

    class BatchSuite(BatchRuleConformance):
        def make(self) -> Any:
            return example("batch rule")()

    class RateSuite(RateRuleConformance):
        def make(self) -> Any:
            return example("learning-rate rule")()

    assert conforms(BatchSuite()) >= 3
    assert conforms(RateSuite()) >= 3


def test_price_source_gives_prices() -> None:
    prices = checked_prices(example("price source")(discount="10").prices(), None, "price source list")
    assert prices["t4"] == pytest.approx(0.315)
    assert np.isclose(prices["a100"], 2.25)

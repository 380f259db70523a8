"""A plug-in of every family is one file, found by name: a third party's by its entry point, ours by lying in the package."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import coadapt
from coadapt import plugins
from coadapt.errors import InputError, UnknownNameError
from coadapt.plugins import FAMILIES, Family
from coadapt.spec.prices import read_prices
from coadapt.testing.planners import evidence, options
from tests.builders import a_cluster, a_trained_job, simulated

TRACE = str(Path(__file__).parents[2] / "examples" / "small.csv")

POLICY = '''
"""Largest jobs first."""
from coadapt.model import workers
from coadapt.policies import BasePolicy, Proposal

class LargestFirst(BasePolicy):
    name = "largest-first"
    option_help = {"at_most": "jobs started at once"}
    presets = {"one-by-one": {"at_most": 1}}
    calls = 0

    def __init__(self, *, at_most: int = 100) -> None:
        self.at_most = at_most

    def decide(self, snapshot, curves, memory, rng):
        type(self).calls += 1
        free, chosen = snapshot.free_gpus, {}
        for job in sorted(snapshot.waiting.values(), key=lambda job: -job.spec.requested_gpus):
            if job.spec.requested_gpus <= free and len(chosen) < self.at_most:
                chosen[job.id] = workers(job.spec.requested)
                free -= job.spec.requested_gpus
        return Proposal(allocations=chosen)
'''
PLACER = '''
from coadapt.placement import PackedPlacer

class LastPlacer(PackedPlacer):
    """As packed, and counted."""
    name = "last"
    calls = 0

    def place(self, snapshot, allocations, fixed=()):
        type(self).calls += 1
        return super().place(snapshot, allocations, fixed)
'''
STEP_TIME_MODEL = '''
import numpy as np
from coadapt.prediction._base import relative_interval
from coadapt.prediction.step_time._base import FittedStepTime, StepTimeModel

class Proportional(FittedStepTime, frozen=True):
    example_s: float

    def step_time(self, nodes, replicas, atomic, accumulation=0):
        passes = (np.asarray(accumulation) + 1) * np.asarray(atomic)
        shape = np.broadcast_shapes(np.shape(nodes), np.shape(replicas), passes.shape)
        return np.broadcast_to(self.example_s * passes, shape)

    def predict(self, x):
        return relative_interval(float(self.step_time(x.nodes, x.replicas, x.atomic_batch, x.accumulation)), 0.5)

class ProportionalModel(StepTimeModel):
    """So much time per example, wherever it runs."""
    name = "proportional"

    def fit_points(self, jobs, priors):
        return [Proportional(example_s=sum(p[4] / p[2] for p in points) / len(points)) for points in jobs]
'''
TRUSTING = """
from coadapt.policies.coadapt.policy import CoadaptPolicy

class TrustingPolicy(CoadaptPolicy):
    name = "trusting"
    step_time_model = "proportional"
"""
PLANNER = '''
from coadapt.planning.planners.exact import ExactPlanner
from msgspec.structs import replace

class BoldPlanner(ExactPlanner):
    """Takes the first row."""
    name = "bold"

    def plan(self, question, options, evidence, rng, trial=None):
        return replace(super().plan(question, options, evidence, rng, trial), planner="bold", chosen=0)
'''
READER = '''
from coadapt.simulation.traces._base import Entry, TraceFormat

class ColonFormat(TraceFormat):
    """job:second:GPUs:duration"""
    name, title = "colons", "colon-separated jobs"

    @staticmethod
    def sniff(head):
        return bool(head) and head[0].count(":") == 3

    def read(self, lines, into):
        class Row:
            def __init__(self, line, text):
                self.line, self.cells = line, text.strip().split(":")
        rows = [Row(i, text) for i, text in enumerate(lines, 1)]
        into.take(rows, lambda row: Entry(line=row.line, job=row.cells[0], submit_s=float(row.cells[1]),
                                          gpus=int(row.cells[2]), duration_s=float(row.cells[3])))
'''
LOG_FORMAT = '''
from coadapt.prediction.training_log import Reading

class Fathoms:
    """Progress in fathoms."""
    name, marks = "fathoms", ("fathom",)

    def parse(self, line):
        words = line.split()
        return Reading(form="fathoms", step=int(words[1]), steps=int(words[3]), overall=True) if words[0] == "fathom" else None
'''
BATCH_RULE = '''
from coadapt.torch.batches import Chosen

class Doubled:
    """Twice M0."""
    name = "doubled"

    def choose(self, now):
        return Chosen(2 * now.limits.initial, now.limits.per_gpu_max, why="twice the first batch size")
'''
RATE_RULE = '''
class CubeRoot:
    """The cube root of the scale."""
    name = "cube-root"

    def factor(self, progress):
        return progress.scale ** (1 / 3)
'''
PRICE_SOURCE = '''
class ListPrices:
    """Known by heart."""
    name = "list"

    def prices(self):
        return {"t4": 0.35}
'''
EXECUTOR = '''
class Nowhere:
    """Starts nothing."""
    name = "nowhere"

    @classmethod
    def connect(cls, home, options, *, jobs, log):
        return cls()

    def apply(self, actions):
        pass

    def inventory(self):
        return []

    def take(self, timeout_s):
        return []

    def acknowledge(self, cursor):
        pass
'''
#: By family: the plug-in's name, its class and its one file.
FILES: dict[str, tuple[str, str, str]] = {
    "policy": ("largest-first", "LargestFirst", POLICY),
    "placement": ("last", "LastPlacer", PLACER),
    "step-time model": ("proportional", "ProportionalModel", STEP_TIME_MODEL),
    "planner": ("bold", "BoldPlanner", PLANNER),
    "trace format": ("colons", "ColonFormat", READER),
    "log format": ("fathoms", "Fathoms", LOG_FORMAT),
    "batch rule": ("doubled", "Doubled", BATCH_RULE),
    "learning-rate rule": ("cube-root", "CubeRoot", RATE_RULE),
    "price source": ("list", "ListPrices", PRICE_SOURCE),
    "executor": ("nowhere", "Nowhere", EXECUTOR),
}

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a module and its entry points as pip would: ``install(group, name, module, class, source)``."""
    made: list[str] = []

    def add(group: str, name: str, module: str, attribute: str, source: str) -> None:
        made.append(module)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{attribute}\n")
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield add
    for module in made:
        sys.modules.pop(module, None)


def plug_in(install: Install, family: Family) -> str:
    name, attribute, source = FILES[family.kind]
    install(family.group, name, f"third_{name.replace('-', '_')}", attribute, source)
    return name


def test_every_family_has_a_plug_in_here() -> None:
    assert [family.kind for family in FAMILIES] == list(FILES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_third_party_is_found_by_name_and_listed_last(install: Install, family: Family) -> None:
    before = family.names()
    name = plug_in(install, family)
    assert family.load(name).__name__ == FILES[family.kind][1]
    assert family.names()[: len(before)] == before
    assert name in family.names()[len(before) :]
    assert plugins.help_of(family.load(name))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_new_file_in_the_package_is_a_new_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Family
) -> None:
    name, attribute, source = FILES[family.kind]
    copied = f"copied_{family.package.replace('.', '_')}"
    original = importlib.import_module(family.package).__path__[0]
    leave = shutil.ignore_patterns("__pycache__", *family.parts)
    shutil.copytree(original, tmp_path / copied, ignore=leave)
    (tmp_path / copied / f"{name.replace('-', '_')}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    copy = Family(family.kind, package=copied, group="nobody", requires=family.requires)
    try:
        assert copy.load(name).__name__ == attribute
        assert copy.load(name).__module__ == f"{copied}.{name.replace('-', '_')}"
        own = set(copy.names()) - set(family.names())
        assert name in own
        assert own <= {name, "one-by-one"}
        assert set(family.names()) <= set(copy.names())
    finally:
        for module in [each for each in sys.modules if each.split(".")[0] == copied]:
            del sys.modules[module]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_every_member_says_what_it_does(family: Family) -> None:
    for member in family.members():
        assert plugins.help_of(member.cls), member.name
        assert family.member(member.name) == member


def test_policy_of_a_third_party_runs_and_shows_its_options(install: Install) -> None:
    name = plug_in(install, plugins.POLICIES)
    result = coadapt.simulate(TRACE, policy=name, cluster="4x4", options={"at_most": 2})
    assert result.summary.num_finished > 0
    assert plugins.POLICIES.load(name).calls > 0
    assert plugins.make_policy("one-by-one").at_most == 1
    from coadapt.cli.policies import listed

    (row,) = [each for each in listed() if each["name"] == name]
    assert row["about"] == "Largest jobs first."
    assert row["options"] == {"at_most": 100}
    assert row["help"] == {"at_most": "jobs started at once"}


def test_placer_of_a_third_party_runs(install: Install) -> None:
    name = plug_in(install, plugins.PLACERS)
    coadapt.simulate(TRACE, policy="fifo", cluster="4x4", placement=name)
    assert plugins.PLACERS.load(name).calls > 0


def test_step_time_model_of_a_third_party_makes_curves_and_batch_sizes(install: Install) -> None:
    from coadapt.prediction.step_time._base import step_time_model

    plug_in(install, plugins.STEP_TIME_MODELS)
    install("coadapt.policies", "trusting", "third_trusting", "TrustingPolicy", TRUSTING)
    jobs = [(10.0 * i, f"j{i}", a_trained_job(1, at_most=4)) for i in range(3)]
    _, ended = simulated(jobs, a_cluster("1x4"), plugins.make_policy("trusting"), interval_s=30.0)
    assert not ended.state.active
    assert step_time_model("proportional").fits > 0


def test_planner_of_a_third_party_plans(install: Install) -> None:
    name = plug_in(install, plugins.PLANNERS)
    planned = coadapt.plan(
        evidence=evidence(), target="metric>=0.8", deadline="2h", gpus="t4:1..8", planner=name
    )
    assert planned.plan.planner == name
    assert planned.plan.chosen == 0
    assert len(options()) > 1


def test_trace_reader_of_a_third_party_reads_by_name_and_by_head(install: Install, tmp_path: Path) -> None:
    from coadapt.simulation.traces import open_trace

    name = plug_in(install, plugins.FORMATS)
    (tmp_path / "jobs.txt").write_text("a:0:1:10\nb:5:2:20\n")
    by_head = open_trace(tmp_path / "jobs.txt")
    assert [(job.job, job.at, job.spec.requested_gpus) for job in by_head.jobs] == [("a", 0, 1), ("b", 5, 2)]
    assert open_trace(tmp_path / "jobs.txt", name) == by_head
    assert (
        coadapt.simulate(
            str(tmp_path / "jobs.txt"), policy="fifo", cluster="1x4", format=name
        ).summary.num_finished
        == 2
    )


def test_log_format_of_a_third_party_is_read_and_one_that_raises_is_left_out(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    from coadapt.prediction.training_log import LogReader

    plug_in(install, plugins.LOG_FORMATS)
    reader = LogReader()
    reader.feed("fathom 3 of 20\nfathom 4 of 20\n")
    found = reader.progress()
    assert found is not None
    assert (found.done, found.total) == (4, 20)
    reader.feed("fathom deep of 20\nstep 5/20 loss 1\n")
    assert "log format fathoms raised" in caplog.text
    assert reader.forms["step lines"] == 1


def test_rules_of_a_third_party_are_used(install: Install) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from coadapt.torch import batches, rates
    from coadapt.torch.rule_conformance import situations

    batch, rate = plug_in(install, plugins.BATCH_RULES), plug_in(install, plugins.RATE_RULES)
    now = next(situations())
    assert batches.batch_rule(batch).choose(now).batch == 2 * now.limits.initial
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    assert rates.rule_for(rate, optimizer).factor(rates.Progress(8.0, (1.0, 1.0), 0.0)) == pytest.approx(2.0)


def test_price_sources_give_prices_by_type(install: Install, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("a100: 2.5\n")
    source = plugins.PRICE_SOURCES.make("file", path=str(tmp_path / "prices.yaml"))
    assert dict(source.prices()) == {"a100": 2.5}
    name = plug_in(install, plugins.PRICE_SOURCES)
    assert plugins.PRICE_SOURCES.make(name).prices() == {"t4": 0.35}
    # what ``plan --prices`` and ``serve --prices`` read by
    assert read_prices(name).of("T4") == 0.35
    assert read_prices(str(tmp_path / "prices.yaml")).of("a100") == 2.5
    with pytest.raises(InputError, match="'west' is not OPTION=VALUE"):
        read_prices(f"{name}:west")


BAD = [
    ("broken", "raise RuntimeError('no\\nlicence')", "does not import (RuntimeError: no licence)"),
    ("gone", "", "does not import (AttributeError: module 'bad_gone' has no attribute 'Bad')"),
    ("exits", "import sys; sys.exit(3)", "does not import (SystemExit: 3)"),
    ("idle", "class Bad:\n    name = 'idle'\n", "has no method 'decide'"),
    ("thing", "Bad = 3", "is not a class but int"),
    ("fifo", "class Bad:\n    def decide(self): ...\n", "the name 'fifo' exists already"),
    (
        "aliased",
        "class Bad:\n    aliases = ('srtf',)\n    def decide(self): ...\n",
        "the name 'srtf' exists already",
    ),
]


@pytest.mark.parametrize(("name", "source", "why"), BAD)
def test_bad_third_party_is_left_out_with_one_line(
    install: Install, caplog: pytest.LogCaptureFixture, name: str, source: str, why: str
) -> None:
    family = Family("policy", package="coadapt.policies", group="coadapt.policies", requires=("decide",))
    ours = family.names()
    install(family.group, "good", "good_one", "LargestFirst", POLICY)
    install(family.group, name, f"bad_{name}", "Bad", source)
    with caplog.at_level(logging.WARNING):
        names = family.names()
        family.names()
    assert [record.getMessage() for record in caplog.records] == [
        f"policy plug-in bad_{name}:Bad is left out: it {why}"
        if not why.startswith("the")
        else f"policy plug-in bad_{name}:Bad is left out: {why}"
    ]
    assert names == [*ours, *(["aliased"] if name == "aliased" else []), "good", "one-by-one"]
    assert family.load("good").__name__ == "LargestFirst"
    assert family.load("fifo").__module__ == "coadapt.policies.fifo"


def test_bad_third_party_asked_for_by_name_is_an_error_that_says_why(install: Install) -> None:
    install("coadapt.policies", "broken", "bad_asked", "Bad", "import nothing_of_this_name")
    with pytest.raises(
        InputError, match=r"policy 'broken' \(bad_asked:Bad\): it does not import \(ModuleNotFound"
    ):
        plugins.make_policy("broken")
    with pytest.raises(UnknownNameError):
        plugins.make_policy("brocken-down")


def test_name_of_ours_is_kept_and_said_when_it_is_asked_for(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    family = Family("policy", package="coadapt.policies", group="coadapt.policies", requires=("decide",))
    install(family.group, "fifo", "bad_fifo_asked", "LargestFirst", POLICY)
    with caplog.at_level(logging.WARNING):
        assert family.load("fifo").__module__ == "coadapt.policies.fifo"
    assert [record.getMessage() for record in caplog.records] == [
        "policy plug-in bad_fifo_asked:LargestFirst is left out: the name 'fifo' exists already"
    ]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import nothing_of_this_name", "does not import (ModuleNotFoundError"),
        ("class Bad:\n    name = 'bad'\n", "has no method 'decide'"),
        (
            "class Bad:\n    name = 'fine'\n    order = 2000\n    def decide(self): ...\n",
            "'fine' exists already",
        ),
    ],
)
def test_bad_file_in_the_package_is_left_out_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, source: str, why: str
) -> None:
    package = tmp_path / "small_family"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_base.py").write_text("class Hidden:\n    name = 'hidden'\n    def decide(self): ...\n")
    (package / "fine.py").write_text("class Fine:\n    name = 'fine'\n    def decide(self): ...\n")
    (package / "wrong.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    family = Family("policy", package="small_family", group="nobody", requires=("decide",))
    try:
        with caplog.at_level(logging.WARNING):
            assert family.names() == ["fine"]
        (record,) = caplog.records
        assert why in record.getMessage()
        assert "small_family.wrong" in record.getMessage()
        assert "\n" not in record.getMessage()
    finally:
        for module in [each for each in sys.modules if each.split(".")[0] == "small_family"]:
            del sys.modules[module]


def test_command_says_it_on_standard_error_and_goes_on(install: Install, tmp_path: Path) -> None:
    install("coadapt.policies", "broken", "bad_for_command", "Bad", "raise RuntimeError('no licence')")
    source = str(Path(plugins.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "coadapt.cli.main", "policies"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), source])},
    )
    assert done.stderr == (
        "policy plug-in bad_for_command:Bad is left out: it does not import (RuntimeError: no licence)\n"
    )
    assert "coadapt\n" in done.stdout
    assert "broken" not in done.stdout


def test_contract_is_imported_without_a_policy_or_a_placer() -> None:
    script = "import sys, coadapt.policies, coadapt.placement; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {
        name for name in done.stdout.split() if name.startswith(("coadapt.policies.", "coadapt.placement."))
    }
    assert loaded == {"coadapt.policies._base", "coadapt.placement._base"}


def test_bare_class_is_a_policy_with_the_default_traits() -> None:
    from coadapt.policies import Traits, traits_of

    class Bare:
        placer, adapts_batch, chooses_size = "packed", False, False

        def decide(self, snapshot, curves, memory, rng):  # type: ignore[no-untyped-def]
            raise NotImplementedError

    assert traits_of(Bare()) == Traits()
    assert Traits().step_time_model == "node-aware"


def test_name_that_a_package_does_not_export_is_an_attribute_error() -> None:
    from coadapt import placement, policies

    with pytest.raises(AttributeError, match=r"module 'coadapt.policies' has no attribute 'FiloPolicy'"):
        _ = policies.FiloPolicy
    with pytest.raises(AttributeError, match=r"module 'coadapt.placement' has no attribute 'nothing'"):
        _ = placement.nothing

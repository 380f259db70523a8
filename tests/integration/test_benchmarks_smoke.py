"""Every benchmark runs to its end in its smoke form: code that nothing runs rots unseen.

Processes are forked from a server that has loaded PyTorch, so that a benchmark costs its own work and not its imports.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from benchmarks import smoke

from tests.data import data_dir
from tests.integration.torch_forks import call, wait

BENCHMARKS = Path(smoke.__file__).parent
#: Modules that a benchmark starts, and that benchmark; all but chaos_torch run in its smoke form.
STARTED = {
    "agent_folds": "agent",
    "agent_sync_worker": "agent",
    "agent_worker": "agent",
    "chaos_replica": "chaos",
    "chaos_torch": "chaos",
    "server_controller": "server",
    "server_load": "server",
}
#: Benchmarks that another one runs whole, in its smoke form too.
WITHIN = {"agent_sync": "agent"}
#: Those that need no measurements of others.
WITHOUT_DATA = {
    "agent",
    "chaos",
    "demo",
    "engines",
    "house",
    "layer_networks",
    "plan_real",
    "same_decisions",
    "scripts",
    "server",
    "stops",
    "trust",
}
PROGRAMS = sorted(
    path.stem for path in BENCHMARKS.glob("*.py") if '\nif __name__ == "__main__":' in path.read_text()
)


def _run(name: str) -> None:
    sys.argv = [f"benchmarks/{name}.py"]
    code = importlib.import_module(f"benchmarks.{name}").main()
    if not smoke.asked():
        sys.exit(f"benchmarks/{name}.py has no smoke form: it never asks benchmarks.smoke")
    sys.exit(code)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in {**STARTED, **WITHIN}])
def test_smoke_form_runs_to_its_end(name: str, tmp_path: Path) -> None:
    data = data_dir()
    if name not in WITHOUT_DATA and data is None:
        pytest.skip("no measurements at $COADAPT_DATA or ../shared/data")
    out = tmp_path / "out"
    envs = {smoke.VARIABLE: "1", "COADAPT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(BENCHMARKS.parent)}
    if data is not None:
        envs["COADAPT_DATA"] = str(data)
    assert wait([call(_run, name, envs=envs, out=out)]) == [0], out.read_text()[-5000:]


def test_smoke_form_keeps_nothing_among_the_results_of_real_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import cells

    monkeypatch.setattr(cells, "CELLS", tmp_path / "cells")
    monkeypatch.setenv(smoke.VARIABLE, "1")
    assert cells.cell("made", {}, "sources", lambda: {"x": 1})["x"] == 1
    assert not cells.CELLS.exists()


def test_every_module_that_runs_is_a_benchmark_or_started_by_one() -> None:
    assert {**STARTED, **WITHIN}.keys() <= set(PROGRAMS)
    for name, by in STARTED.items():
        family = by.partition("_")[0]
        others = [path for path in BENCHMARKS.glob(f"{family}*.py") if path.stem != name]
        assert any(name in path.read_text() for path in others), f"nothing of {by} starts {name}"

"""What a replica imports before its first step: every start and every resize waits for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt import torch as agent


def test_agent_starts_without_scipy() -> None:
    script = "import sys, coadapt.torch.job; sys.exit(any(m.split('.')[0] == 'scipy' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("name", ["init", "rates"])
def test_missing_pytorch_is_one_line_with_the_remedy(name: str) -> None:
    script = f"import sys; sys.modules['torch'] = None; import coadapt.torch; coadapt.torch.{name}"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last == "coadapt.errors.InputError: coadapt.torch needs PyTorch: pip install 'coadapt[torch]'"
    assert done.stderr.count("File ") <= 2, "the import of PyTorch is not shown"


_PACKAGE = Path(str(agent.__file__)).parent
#: Every module that is started as a process of its own.
PROCESSES = [
    ".".join(("coadapt.torch", *path.relative_to(_PACKAGE).with_suffix("").parts))
    for path in sorted(_PACKAGE.rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


@pytest.mark.parametrize("module", PROCESSES)
def test_module_that_is_a_process_is_not_loaded_by_its_package(module: str) -> None:
    """Else Python warns at every start that the module is already loaded, and executes it twice."""
    package, _, _ = module.rpartition(".")
    script = f"import sys, {package}; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

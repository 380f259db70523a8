"""What import-linter cannot say: how deep imports go, names in strings, what a process loads, what package roots export."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

_SPEC = find_spec("coadapt")
assert _SPEC is not None
assert _SPEC.origin is not None
SOURCE = Path(_SPEC.origin).parent
#: Package roots that look their names up on first use.
LAZY = (
    *(
        "coadapt",
        "coadapt.client",
        "coadapt.executors",
        "coadapt.explain",
        "coadapt.live",
        "coadapt.planning",
    ),
    *("coadapt.prediction", "coadapt.report", "coadapt.server", "coadapt.simulation", "coadapt.spec"),
    *("coadapt.store", "coadapt.wire"),
)
#: Modules of the package itself that the command line may import.
PLAIN = ("coadapt.errors", "coadapt.plugins", "coadapt.progress", "coadapt.units")
#: What the command line is started as.
ENTRY_POINT = "coadapt.cli.main"


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imported_in(text: str) -> Iterator[str]:
    """Every module of ours that a source imports, wherever in it: in functions and for type checkers only, too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] == "coadapt")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            if node.module is None or node.module.split(".")[0] != "coadapt":
                continue
            for each in node.names:
                below = f"{node.module}.{each.name}"
                yield below if is_module(below) else node.module


def deeper_than_roots(text: str) -> list[str]:
    """Modules that the command line may not import."""
    return [
        name
        for name in imported_in(text)
        if name not in PLAIN and not name.startswith("coadapt.cli") and not is_root(name)
    ]


def is_root(name: str) -> bool:
    return name == "coadapt" or (name.count(".") == 1 and (SOURCE / name.split(".")[1]).is_dir())


def test_command_line_imports_package_roots_only() -> None:
    files = sorted((SOURCE / "cli").rglob("*.py"))
    found = {
        path.relative_to(SOURCE).as_posix(): deeper_than_roots(path.read_text(encoding="utf-8"))
        for path in files
    }
    assert {path: names for path, names in found.items() if names} == {}
    assert len(files) > 20


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("from coadapt import simulate, progress\nfrom coadapt.planning import Planned\nimport coadapt", []),
        ("from coadapt.cli.jobs import _job_table\nfrom coadapt.errors import InputError\nimport numpy", []),
        ("def f():\n    from coadapt.planning.answer import Planned", ["coadapt.planning.answer"]),
        ("from coadapt.planning import torch_tools", ["coadapt.planning.torch_tools"]),
        ("if TYPE_CHECKING:\n    import coadapt.wire.api", ["coadapt.wire.api"]),
        ("from coadapt._lazy import attach", ["coadapt._lazy"]),
    ],
)
def test_deep_import_is_found(text: str, deep: list[str]) -> None:
    assert deeper_than_roots(text) == deep


def cli_modules_in_strings(text: str) -> set[str]:
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    return {
        name for each in strings if isinstance(each, str) for name in re.findall(r"coadapt\.cli[\w.]*", each)
    }


def test_no_string_outside_the_command_line_names_a_module_of_it_but_the_entry_point() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): names
        for path in SOURCE.rglob("*.py")
        if path.parts[len(SOURCE.parts)] != "cli"
        and (names := cli_modules_in_strings(path.read_text(encoding="utf-8")) - {ENTRY_POINT})
    }
    assert found == {}
    name = "coadapt.cli" + ".forward_process"
    assert cli_modules_in_strings(f'run(["-m", "{name}"])') == {name}


def loaded_by(script: str) -> set[str]:
    """Modules that an interpreter has loaded after the script."""
    script += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_controller_process_loads_no_simulator_and_no_trace_reader() -> None:
    spec = find_spec("coadapt.live.controller_process")
    assert spec is not None
    assert spec.origin is not None
    # also what it imports in functions, as it does when it runs
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    first = "from __future__ import annotations"
    used = """
from coadapt.runtime.controller import scheduler_of
from coadapt.wire.serve_options import ServeOptions
assert len(find_executor("local").offered_nodes(ServeOptions(virtual="2x4:t4+1x8:a100"))) == 3
scheduler_of(ServeOptions())
"""
    loaded = loaded_by("\n".join([first, *(each for each in imports if each != first), used]))
    assert "coadapt.runtime.controller" in loaded
    assert {
        name for name in loaded if name.startswith(("coadapt.simulation", "coadapt.cli", "coadapt.planning"))
    } == set()


def test_ray_is_loaded_by_its_driver_only() -> None:
    """Ray starts threads and takes a second: neither the hub nor a command that names it may load it."""
    loaded = loaded_by(
        """
import coadapt.executors.hub.hub_process, coadapt.live.pilot, coadapt.cli.main
import coadapt.executors.engines.ray_driver, coadapt.executors.engines.ray_unit
from coadapt.executors import find_executor
from coadapt.executors.engines.ray import RayEngine, RayOptions
find_executor("ray")
RayEngine("", RayOptions())
"""
    )
    assert "coadapt.executors.engines.ray" in loaded
    assert not {name for name in loaded if name == "ray" or name.startswith("ray.")}
    importing = {
        path.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(each.name.split(".")[0] == "ray" for each in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray")
    }
    assert importing == {"ray_driver.py", "ray_unit.py"}


def test_package_roots_import_nothing() -> None:
    loaded = loaded_by("\n".join(f"import {name}" for name in LAZY))
    assert {name for name in loaded if name.startswith("coadapt")} == {*LAZY, "coadapt._lazy"}
    assert not loaded & {"numpy", "scipy", "msgspec", "click", "starlette"}


@pytest.mark.parametrize("name", LAZY)
def test_what_a_root_exports_is_there_and_typed(name: str) -> None:
    root = importlib.import_module(name)
    assert root.__file__ is not None
    assert root.__doc__
    exported = set(root.__all__)
    assert exported <= set(dir(root))
    for each in exported:
        assert getattr(root, each) is not None
        # the import system would put a module of the same name in its place
        assert not is_module(f"{name}.{each}"), f"{name}.{each} is a module as well"
    assert typed_names(Path(root.__file__)) == exported
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        root.nothing  # noqa: B018


def typed_names(path: Path) -> set[str]:
    """What a root imports for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {each.name for node in block.body if isinstance(node, ast.ImportFrom) for each in node.names}

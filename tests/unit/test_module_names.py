"""Names of modules in strings, comments, documents and settings: each is that of a module or of something in one.

An import that names a moved module fails by itself. A string does not: an entry point, the target of a test's patch, the
module after ``python -m`` and the name in a document fail late or never. Modules are looked up by file and their names by
syntax tree, so that nothing is imported, PyTorch least of all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Where names are looked for; of a directory, all Python files and Markdown documents.
WRITTEN = ("src", "tests", "benchmarks", "examples", "docs", "README.md", "CONTRIBUTING.md", "pyproject.toml")
#: What looks like the name of a module and is none.
NO_MODULES = {
    "coadapt.controller": "name of a logger",
    "coadapt.forward": "name of a logger",
    "coadapt.batch_rules": "group of entry points",
    "coadapt.formats": "group of entry points",
    "coadapt.log_formats": "group of entry points",
    "coadapt.placements": "group of entry points",
    "coadapt.planners": "group of entry points",
    "coadapt.price_sources": "group of entry points",
    "coadapt.rate_rules": "group of entry points",
    "coadapt.step_time_models": "group of entry points",
    "coadapt.ckpt": "name of a file",
    "coadapt.service": "name of a file",
    "coadapt.init": "training scripts import the package for PyTorch under the name coadapt",
    "coadapt.torch.tools.TOOL": "stands for any of several modules",
}
#: Files that make up a package of our name for tests of tools that read one.
MADE_UP = ("tests/unit/benchmarks/test_house.py",)
#: The package, a dot, and so on; perhaps a colon and a name; not the end of a path, of an address or of a longer name.
_NAME = re.compile(r"(?<![\w./@-])coadapt(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*)?")
#: A module by its file.
_FILE = re.compile(r"(?<![\w./])(?:src/)?(coadapt/[\w/]+\.py)\b")
_FROM = re.compile(r"^[ >]*from (coadapt[\w.]*) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)


@cache
def package() -> Path:
    """The directory of the installed package."""
    spec = find_spec("coadapt")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def module_file(name: str) -> Path | None:
    """The file of a module; None if there is no such module."""
    path = package().joinpath(*name.split(".")[1:])
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None)


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines or imports; of one that looks names up on first use, every string in it too."""
    found: set[str] = set()
    pending: list[ast.stmt] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    lazy = any(isinstance(each, ast.FunctionDef) and each.name == "__getattr__" for each in pending)
    if lazy:
        nodes = (node for each in pending for node in ast.walk(each))
        found |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    while pending:
        each = pending.pop()
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(each.name)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in each.names}
        elif isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        else:  # if, try, with: what is inside them is the module's as well
            pending += [node for node in ast.walk(each) if isinstance(node, ast.stmt) and node is not each]
    return frozenset(found)


@cache
def resolves(name: str) -> bool:
    """Whether a name is that of a module, or of something in a module; what is in a class is not looked at."""
    before, colon, attribute = name.partition(":")
    if colon:
        path = module_file(before)
        return path is not None and attribute in names_in(path)
    parts = before.split(".")
    for cut in range(len(parts), 0, -1):
        path = module_file(".".join(parts[:cut]))
        if path is not None:
            return cut == len(parts) or parts[cut] in names_in(path)
    return False


def written_in(text: str) -> Iterator[str]:
    """Every name in a text, and what it imports from each module."""
    for found in _NAME.finditer(text):
        yield found[0]
    for found in _FROM.finditer(text):
        for each in found[2].strip("()").split(","):
            name = each.partition("#")[0].split(" as ")[0].strip()
            if name.isidentifier():
                yield f"{found[1]}.{name}"


def unresolved(text: str) -> list[str]:
    """Names in a text that are nobody's."""
    return sorted({name for name in written_in(text) if name not in NO_MODULES and not resolves(name)})


@cache
def texts() -> dict[str, str]:
    """All that is written, by file, but for what is made up."""
    found: list[Path] = []
    for each in WRITTEN:
        path = ROOT / each
        found += [path] if path.is_file() else [f for f in path.rglob("*") if f.suffix in (".py", ".md")]
    names = {str(path.relative_to(ROOT)): path for path in sorted(found)}
    return {name: path.read_text(encoding="utf-8") for name, path in names.items() if name not in MADE_UP}


def test_every_name_of_a_module_is_that_of_one() -> None:
    assert {path: names for path, text in texts().items() if (names := unresolved(text))} == {}


def test_every_file_of_the_package_that_is_named_is_there() -> None:
    named = {(path, found[1]) for path, text in texts().items() for found in _FILE.finditer(text)}
    assert [each for each in sorted(named) if not (package().parent / each[1]).is_file()] == []
    assert named


@pytest.mark.parametrize("page", ["architecture.md", "extending.md", "journey-of-a-job.md"])
def test_every_path_on_a_page_about_the_code_is_there(page: str) -> None:
    """These pages write paths relative to the package, or to the repository."""
    named = re.findall(r"`([\w/]+\.py)`", texts()[f"docs/{page}"])
    assert [each for each in named if not ((package() / each).is_file() or (ROOT / each).is_file())] == []
    assert named


def test_every_exception_is_still_needed() -> None:
    ours = Path(__file__).name
    seen = {
        found[0]
        for path, text in texts().items()
        if not path.endswith(ours)
        for found in _NAME.finditer(text)
    }
    assert {name for name in NO_MODULES if name not in seen or resolves(name)} == set()


@pytest.mark.parametrize(
    "name",
    [
        *(".nowhere", ".errors.NoError", ".errors:NoError", ".errors.deeper.still", ":main"),
        *(".nowhere.errors", ".nowhere:main", ".torch.nowhere", ".Nothing"),
    ],
)
def test_name_of_nothing_is_found(name: str) -> None:
    assert not resolves("coadapt" + name)


def test_name_of_a_module_and_of_what_is_in_it_resolves() -> None:
    for name in ("coadapt", "coadapt.errors", "coadapt.errors.InputError", "coadapt.errors:InputError"):
        assert resolves(name)


def test_import_of_what_is_not_in_a_module_is_found() -> None:
    module = "coadapt" + ".errors"
    assert unresolved(f"from {module} import (\n    InputError,\n    Nothing as N,  # why\n)\n") == [
        f"{module}.Nothing"
    ]

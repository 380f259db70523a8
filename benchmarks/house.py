"""The structure of ``src/coadapt``, measured (``python -m benchmarks.house``): a table of now, must, aim and measured.

It informs and forbids nothing: the exit code is 0 whatever the figures are. ``now`` was measured by a reviewer at
commit 6d85f2d. The definitions, where a word could mean several things:

- A *fragment* is imported by exactly one module of its top-level package; ``__init__`` modules do not count as
  importers, imports inside functions and under ``TYPE_CHECKING`` do.
- A *duplicate* is a file name used more than once, ``__init__`` and ``__main__`` apart. It is excused when it is a role
  of a family (``FAMILY_ROLES``) or when all its places are folders of families (``FAMILIES``): the policy, the batch
  rule and the planner of one paper are rightly called by the same name.
- The *longest import chain* follows what is imported while a module is being imported, so neither imports inside
  functions nor those under ``TYPE_CHECKING``. Modules that import each other count as one link each.
- *Files of a journey* are the files in which at least one function ran (``--trace``, see ``house_trace``).
- A *named parameter* occurs as a word in the docstring of its function, for ``__init__`` also in that of the class.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.house_trace import JOURNEYS, trace
from benchmarks.smoke import either

#: File names that say which part of a family's member a module is.
FAMILY_ROLES = frozenset({"_base", "policy"})
#: Folders whose modules are members of one family: one algorithm, command or route each. Of the tree of 6d85f2d and of the new one.
FAMILIES = (
    *("policies", "placement", "cli", "executors", "server/routes", "server/dashboard"),
    *("configure/planners", "plan/planners", "simulate/traces", "simulation/traces", "predict/step_time"),
    *("torch/batches", "torch/rates", "torch/sync", "torch/integrations"),
)
#: A function with at least as many parameters should name them.
MANY_PARAMETERS = 4

Graph = Mapping[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of the package."""

    name: str
    path: Path
    folder: str
    text: str
    tree: ast.Module

    @property
    def is_init(self) -> bool:
        """True for ``__init__.py``."""
        return self.path.stem == "__init__"

    @property
    def top(self) -> str:
        """Name of the top-level package or module it belongs to, empty for the package's own ``__init__``."""
        return self.name.partition(".")[2].partition(".")[0]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside what it was and what it should be."""

    what: str
    now: str
    must: str
    aim: str
    measured: str
    note: str = ""


def read_modules(package: Path) -> dict[str, Module]:
    """All modules of the package in folder ``package``, by their dotted names."""
    found: dict[str, Module] = {}
    for path in sorted(package.rglob("*.py")):
        inner = path.relative_to(package)
        parts = [package.name, *inner.with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        folder = inner.parent.as_posix() if inner.parent.parts else ""
        found[name] = Module(name, path, folder, text, ast.parse(text))
    return found


def code_lines(module: Module) -> int:
    """Lines that are neither docstring, comment nor blank."""
    documented: set[int] = set()
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | Function)
            and ast.get_docstring(node, clean=False) is not None
        ):
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in documented
        for number, line in enumerate(module.text.splitlines(), 1)
    )


def folder_sizes(modules: Mapping[str, Module]) -> Counter[str]:
    """Modules per folder, ``__init__`` apart."""
    return Counter(module.folder for module in modules.values() if not module.is_init)


def imports(modules: Mapping[str, Module], *, late: bool = True, typing: bool = True) -> dict[str, set[str]]:
    """Which modules each module imports: with ``late`` also inside functions, with ``typing`` also for types only."""
    graph: dict[str, set[str]] = {}
    for name, module in modules.items():
        found: set[str] = set()
        for statement in _import_statements(module.tree, late=late, typing=typing):
            if isinstance(statement, ast.Import):
                found.update(alias.name for alias in statement.names if alias.name in modules)
                continue
            base = _imported_from(module, statement)
            for alias in statement.names:
                inner = f"{base}.{alias.name}"
                found.update(
                    target for target in ((inner,) if inner in modules else (base,)) if target in modules
                )
        graph[name] = found - {name}
    return graph


def fragments(modules: Mapping[str, Module], graph: Graph) -> dict[str, str]:
    """Modules imported by exactly one module of their top-level package, ``__init__`` not counted, with that module."""
    importers: dict[str, list[str]] = defaultdict(list)
    for name, targets in graph.items():
        if not modules[name].is_init:
            for target in targets:
                importers[target].append(name)
    return {
        name: importers[name][0]
        for name, module in modules.items()
        if not module.is_init and len(importers[name]) == 1 and modules[importers[name][0]].top == module.top
    }


def duplicates(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """File names used more than once, with the folders that use them."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        if module.path.stem not in ("__init__", "__main__"):
            places[module.path.stem].append(module.folder)
    return {name: folders for name, folders in sorted(places.items()) if len(folders) > 1}


def outside_families(found: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Those of the duplicates ``found`` that no family excuses."""
    return {
        name: folders
        for name, folders in found.items()
        if name not in FAMILY_ROLES and not all(_in_family(folder) for folder in folders)
    }


def components(graph: Graph) -> list[list[str]]:
    """Sets of nodes that reach each other, those without further targets first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            start = stack.index(node)
            found.append(stack[start:])
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def longest_chain(graph: Graph) -> list[str]:
    """The longest chain of imports; modules that import each other stand in it one after the other."""
    chains: dict[str, list[str]] = {}
    for members in components(graph):
        targets = {target for member in members for target in graph.get(member, ())} - set(members)
        best = max((chains[target] for target in sorted(targets)), key=len, default=[])
        chains.update({member: [*members, *best] for member in members})
    return max((chains[name] for name in sorted(chains)), key=len, default=[])


def package_cycles(modules: Mapping[str, Module], graph: Graph) -> list[list[str]]:
    """Sets of top-level packages that import each other, however and whenever they do."""
    tops: dict[str, set[str]] = {module.top: set() for module in modules.values() if module.top}
    for name, targets in graph.items():
        if modules[name].top:
            tops[modules[name].top] |= {modules[target].top for target in targets} - {"", modules[name].top}
    return [sorted(members) for members in components(tops) if len(members) > 1]


def named_parameters(modules: Mapping[str, Module]) -> tuple[int, int]:
    """Parameters named in docstrings, and all of them, over public functions with at least ``MANY_PARAMETERS``."""
    named = total = 0
    for module in modules.values():
        for function, owner in _public_functions(module.tree.body):
            listed = _parameters(function)
            text = ast.get_docstring(function) or ""
            if owner is not None and function.name == "__init__":
                text += " " + (ast.get_docstring(owner) or "")
            if len(listed) >= MANY_PARAMETERS and text.strip():
                named += len(set(listed) & set(re.findall(r"\w+", text)))
                total += len(listed)
    return named, total


def ignored_imports(pyproject: Path) -> list[str]:
    """Imports that the layer contracts ignore."""
    tool = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {})
    contracts = tool.get("importlinter", {}).get("contracts", [])
    return [str(edge) for contract in contracts for edge in contract.get("ignore_imports", [])]


def static_rows(root: Path, *, listed: bool) -> tuple[list[Row], list[Row]]:
    """Rows that need nothing to run, those before and those after the journeys; with ``listed`` prints what they count."""
    modules = read_modules(root / "src" / "coadapt")
    graph, early = imports(modules), imports(modules, late=False, typing=False)
    single, repeated = fragments(modules, graph), duplicates(modules)
    unexcused = outside_families(repeated)
    chain, cycles, ignored = (
        longest_chain(early),
        package_cycles(modules, graph),
        ignored_imports(root / "pyproject.toml"),
    )
    beside = sum(modules[name].folder == modules[user].folder for name, user in single.items())
    named, total = named_parameters(modules)
    fullest = folder_sizes(modules).most_common(5)
    if listed:
        _print_list("fragments", (f"{name}  <- {user}" for name, user in single.items()))
        _print_list(
            "duplicates", (f"{name}: {', '.join(f or '.' for f in at)}" for name, at in repeated.items())
        )
        _print_list("duplicates outside families", unexcused)
        _print_list("longest import chain", chain)
        _print_list("package cycles", (" <-> ".join(members) for members in cycles))
        _print_list("ignored imports", ignored)
    before = [
        Row("modules", "548", "380", "330", str(len(modules))),
        Row("lines of code", "44,066", "42,500", "40,000", f"{sum(map(code_lines, modules.values())):,}"),
        Row(
            "most modules in one folder",
            *("94", "22", "20", str(fullest[0][1])),
            ", ".join(f"{folder or '.'} {count}" for folder, count in fullest),
        ),
        Row(
            "fragments: imported by one other of their package",
            *("144", "50", "30", str(len(single))),
            f"{beside} of them by a module of the same folder",
        ),
        Row("file names used more than once", "42", "-", "-", str(len(repeated))),
        Row("... outside families", "-", "6", "0", str(len(unexcused)), _some(unexcused)),
    ]
    after = [
        Row(
            "longest import chain, modules",
            *("36", "20", "-", str(len(chain))),
            f"{len(longest_chain(imports(modules, typing=False)))} with imports inside functions",
        ),
        Row("package cycles", "1", "0", "0", str(len(cycles)), "; ".join(map(", ".join, cycles))),
        Row("ignored imports of layer contracts", "2", "0", "0", str(len(ignored))),
        Row(
            "files to add a plug-in",
            *("4/4/2/4/6/-", "1 each", "1 each", "-"),
            "policy/reader/planner/placer/step-time model/executor: see tests/contracts/test_plugins.py",
        ),
        Row(
            "parameters named in docstrings",
            *("23%", ">= 60%", ">= 80%", f"{100 * named / max(total, 1):.0f}%"),
            f"{named} of {total}, functions with {MANY_PARAMETERS} or more",
        ),
        Row("readers' draws", "-", "-", "-", "-", "docs/design/0016-the-house.md"),
    ]
    return before, after


def journey_rows(root: Path, *, traced: bool, listed: bool) -> list[Row]:
    """Files each journey runs through, measured if ``traced``."""
    rows: list[Row] = []
    for name, journey in JOURNEYS.items():
        what, now, must = f"files {journey.what} runs through", str(journey.now), str(journey.must)
        if not traced:
            rows.append(Row(what, now, must, "-", "-", "--trace"))
            continue
        found = trace(root, journey)
        parts = ", ".join(f"{label} {len(files)}" for label, files in found.by_process.items())
        rows.append(
            Row(what, now, must, "-", str(len(found.files)), parts if len(found.by_process) > 1 else "")
        )
        if listed:
            _print_list(f"files of {name}", sorted(found.files))
    return rows


def timed_rows(root: Path, *, timed: bool) -> list[Row]:
    """Wall time of ``make check`` and ``make test``, run if ``timed``."""
    rows: list[Row] = []
    for target in ("check", "test"):
        if not timed:
            rows.append(Row(f"make {target}, wall time", "-", "-", "-", "-", "--time"))
            continue
        began = time.perf_counter()
        code = subprocess.run(["make", target], cwd=root, capture_output=True, check=False).returncode
        took = f"{time.perf_counter() - began:.0f} s"
        rows.append(
            Row(f"make {target}, wall time", "-", "-", "-", took, f"failed: exit {code}" if code else "")
        )
    return rows


def show(rows: Sequence[Row]) -> None:
    """Prints the table."""
    lines = [("", "now (6d85f2d)", "must", "aim", "measured", "")]
    lines += [(row.what, row.now, row.must, row.aim, row.measured, row.note) for row in rows]
    width = [max(len(line[column]) for line in lines) for column in range(5)]
    for what, *figures, note in lines:
        cells = " | ".join(f"{cell:>{width[column]}}" for column, cell in enumerate(figures, 1))
        print(f"{what:<{width[0]}} | {cells}  {note}".rstrip())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house", description="The structure of src/coadapt."
    )
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).parents[1], help="a checkout; default this one"
    )
    parser.add_argument(
        "--trace", action="store_true", help="run the journeys and count their files (minutes)"
    )
    parser.add_argument("--time", action="store_true", help="run make check and make test (many minutes)")
    parser.add_argument("--list", action="store_true", help="print what is counted")
    given = parser.parse_args(arguments)
    root = given.root.resolve()
    before, after = static_rows(root, listed=given.list)
    journeys = journey_rows(root, traced=either(False, given.trace), listed=given.list)
    show([*before, *journeys, *after, *timed_rows(root, timed=either(False, given.time))])


def _import_statements(node: ast.AST, *, late: bool, typing: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
            continue
        inner: ast.AST = child
        if not late and isinstance(child, Function):
            continue
        if not typing and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inner = ast.Module(child.orelse, [])
        yield from _import_statements(inner, late=late, typing=typing)


def _imported_from(module: Module, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    package = module.name.split(".") if module.is_init else module.name.split(".")[:-1]
    kept = package[: len(package) - statement.level + 1]
    return ".".join([*kept, statement.module] if statement.module else kept)


def _in_family(folder: str) -> bool:
    return any(folder == family or folder.startswith(f"{family}/") for family in FAMILIES)


def _public_functions(body: Iterable[ast.stmt]) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    for node in body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node, None
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, Function) and (
                    not inner.name.startswith("_") or inner.name == "__init__"
                ):
                    yield inner, node


def _parameters(function: Function) -> list[str]:
    given = function.args
    listed = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each.arg for each in listed if each is not None and each.arg not in ("self", "cls")]


def _some(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ... (--list)" if len(listed) > most else "")


def _print_list(title: str, lines: Iterable[str]) -> None:
    print(f"{title}:", *lines, sep="\n  ", end="\n\n")


if __name__ == "__main__":
    main()

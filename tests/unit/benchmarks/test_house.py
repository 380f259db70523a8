"""The tool that measures the structure of the package, on a small one made for it and on our own."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import house
from benchmarks.house_trace import role_of, summary

_FILES = {
    "src/coadapt/__init__.py": '"""Root."""\n',
    "src/coadapt/errors.py": '"""Errors."""\n\n\nclass Wrong(Exception):\n    """Raised."""\n',
    # imports upward inside a function: a cycle of packages, but no link of a chain
    "src/coadapt/low/__init__.py": "from coadapt.low.part import part\n",
    "src/coadapt/low/part.py": (
        "from __future__ import annotations\n\nfrom . import piece\nfrom ..errors import Wrong\n\n\n"
        "def part():\n    from coadapt.high import user\n\n    return piece, Wrong, user\n"
    ),
    "src/coadapt/low/piece.py": "# a comment\nVALUE = 1\n",
    "src/coadapt/high/__init__.py": "",
    "src/coadapt/high/user.py": (
        "from typing import TYPE_CHECKING\n\nfrom coadapt.low import part\n\n"
        "if TYPE_CHECKING:\n    from coadapt.high.piece import VALUE\n"
    ),
    "src/coadapt/high/piece.py": "VALUE = 2\n",
    # the same name in two families, and a role of a family
    "src/coadapt/policies/sia.py": "",
    "src/coadapt/torch/batches/sia.py": "",
    "src/coadapt/policies/_base.py": "",
    "src/coadapt/low/_base.py": '''
class Public:
    """Has ``first``."""

    def __init__(self, first, second, third, fourth):
        pass

    def some(self, one, two, *, three, **four):
        """Takes ``one`` and ``four``, and nothing called twofold."""

    def few(self, one):
        """One."""

    def _private(self, one, two, three, four):
        """Nothing."""


def plain(one, two, three, four):
    return one
''',
    "pyproject.toml": (
        '[[tool.importlinter.contracts]]\nname = "x"\nignore_imports = ["coadapt.low.part -> coadapt.high.user"]\n'
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in _FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def modules(root: Path) -> dict[str, house.Module]:
    return house.read_modules(root / "src" / "coadapt")


def test_sizes(modules: dict[str, house.Module]):
    assert len(modules) == 12
    assert house.code_lines(modules["coadapt.errors"]) == 1
    assert house.code_lines(modules["coadapt.low.piece"]) == 1
    assert house.folder_sizes(modules) == {"": 1, "low": 3, "high": 2, "policies": 2, "torch/batches": 1}


def test_imports_by_when_they_run(modules: dict[str, house.Module]):
    every = house.imports(modules)
    early = house.imports(modules, late=False, typing=False)
    assert every["coadapt.low.part"] == {"coadapt.low.piece", "coadapt.errors", "coadapt.high.user"}
    assert early["coadapt.low.part"] == {"coadapt.low.piece", "coadapt.errors"}
    assert every["coadapt.high.user"] == {"coadapt.low.part", "coadapt.high.piece"}
    assert early["coadapt.high.user"] == {"coadapt.low.part"}


def test_fragments_have_one_importer_in_their_package(modules: dict[str, house.Module]):
    found = house.fragments(modules, house.imports(modules))
    # errors is imported by one module, but of another package; low.part by an __init__ and from another package
    assert found == {"coadapt.low.piece": "coadapt.low.part", "coadapt.high.piece": "coadapt.high.user"}


def test_duplicates_are_excused_by_families_only(modules: dict[str, house.Module]):
    found = house.duplicates(modules)
    assert set(found) == {"sia", "piece", "_base"}
    assert set(house.outside_families(found)) == {"piece"}
    assert set(house.outside_families({"plan": ["cli", "plan"], "logs": ["cli", "server/routes"]})) == {
        "plan"
    }


def test_longest_chain_and_cycles(modules: dict[str, house.Module]):
    every = house.imports(modules)
    chain = house.longest_chain(house.imports(modules, late=False, typing=False))
    assert chain[:2] == ["coadapt.high.user", "coadapt.low.part"]
    assert len(chain) == 3
    assert house.package_cycles(modules, every) == [["high", "low"]]


def test_longest_chain_counts_every_module_of_a_cycle():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"d"}}
    assert len(house.longest_chain(graph)) == 4
    assert sorted(map(sorted, house.components(graph))) == [["a"], ["b", "c"], ["d"], ["e"]]


def test_parameters_named_in_docstrings(modules: dict[str, house.Module]):
    # __init__ by the docstring of its class: 1 of 4; some: 2 of 4; plain has no docstring
    assert house.named_parameters(modules) == (3, 8)


def test_table_of_a_small_package(root: Path, capsys: pytest.CaptureFixture[str]):
    house.main(["--root", str(root), "--list"])
    out = capsys.readouterr().out
    measured = {
        line.split("|")[0].strip(): line.split("|")[4].split()[0] for line in out.splitlines() if "|" in line
    }
    assert measured["modules"] == "12"
    assert measured["ignored imports of layer contracts"] == "1"
    assert measured["files a plan runs through"] == "-"
    assert "coadapt.low.piece  <- coadapt.low.part" in out


def test_table_of_our_own_package(capsys: pytest.CaptureFixture[str]):
    house.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("|")[1].strip() == "now (6d85f2d)"
    assert len({line.count("|") for line in lines}) == 1


def test_record_of_a_trace_is_counted_by_process():
    record = "\n".join(
        [
            "1\targv\t-c\x1fimport sys\x1fsubmit\x1f--home\x1f/tmp/keeper",
            "1\tfile\tcli/submit.py",
            "2\targv\t-m\x1fcoadapt.cluster.keeper\x1f/tmp/home",
            "2\tfile\tcluster/keeper.py",
            "1\tfile\terrors.py",
            "3\targv\t-m\x1fcoadapt.cli.forward_process",
            "3\tfile\tsimulate/forward.py",
        ]
    )
    found = summary(record)
    assert {role: len(files) for role, files in found.by_process.items()} == {
        "client": 2,
        "keeper": 1,
        "look-ahead": 1,
    }
    assert found.files == {"cli/submit.py", "cluster/keeper.py", "errors.py"}
    assert role_of(["/tmp/code/train.py", "/tmp/controller"]) == "agent"
    assert role_of(["-m", "something.else"]) == "something.else"

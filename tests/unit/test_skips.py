"""A skip that no rule allows fails a strict run; what the rules allow is stated in one place."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.skips import ALLOWED, Skip, SkipCheck, is_allowed, is_strict

_names = itertools.count()


def _exit_code(directory: Path, source: str, *words: str) -> int:
    # a name of its own: modules are kept by name
    (directory / f"test_made_{next(_names)}.py").write_text("import pytest\n" + source)
    (directory / "pytest.ini").write_text("[pytest]\n")
    arguments = [
        "-q",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-c",
        str(directory / "pytest.ini"),
        *words,
        str(directory),
    ]
    return int(pytest.main(arguments, plugins=[SkipCheck()]))


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.skip(reason='no tool')\ndef test_one(): pass\n",
        "def test_one(): pytest.skip('no tool')\n",
        "pytest.importorskip('no_such_module', reason='no tool')\ndef test_one(): pass\n",
    ],
)
def test_unlisted_skip_fails_the_run_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    assert _exit_code(tmp_path, source + "def test_other(): pass\n") != 0
    assert "SKIP NOT ALLOWED test_made_" in (said := capsys.readouterr().out)
    assert "no tool" in said


@pytest.mark.parametrize(
    "source", ["def test_one(): pass\n", "@pytest.mark.xfail\ndef test_one(): assert False\n"]
)
def test_run_without_skips_passes(tmp_path: Path, source: str) -> None:
    assert _exit_code(tmp_path, source) == 0


def test_rule_allows_its_test_for_its_reason_only() -> None:
    rules = (Skip("tests/test_a.py::test_one*", "no GPU*"),)
    assert is_allowed(Skip("tests/test_a.py::test_one[x]", "no GPU here"), rules)
    assert not is_allowed(Skip("tests/test_a.py::test_one[x]", "no tool"), rules)
    assert not is_allowed(Skip("tests/test_a.py::test_two", "no GPU here"), rules)


def test_every_rule_names_a_file_that_is_there() -> None:
    for rule in ALLOWED:
        assert Path(__file__).parents[2].joinpath(rule.test.partition("::")[0]).is_file()


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("0", False), ("", False)])
def test_strict_by_the_environment(value: str, strict: bool) -> None:
    assert is_strict({"COADAPT_STRICT_SKIPS": value}) is strict
    assert not is_strict({})

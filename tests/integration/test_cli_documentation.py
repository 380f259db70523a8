"""What the documentation shows runs as it is shown."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from coadapt.cli.main import run
from tests.integration.command_line import EXAMPLES, Printed

ROOT = EXAMPLES.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "cli.md"]


def _blocks(page: Path, *languages: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for language, text in blocks if language in languages]


def _shown_commands() -> list[str]:
    lines = [
        line.removeprefix("$ ")
        for page in PAGES
        for block in _blocks(page, "", "console", "bash")
        for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("coadapt ")]


@pytest.fixture
def beside_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a copy of the examples, in which nothing starts processes."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    return tmp_path


def test_documentation_uses_files_that_exist() -> None:
    shown = _shown_commands()
    assert len(shown) >= 8
    named = {name for line in shown for name in re.findall(r"\S+/\S+\.csv", line)}
    assert named == {"examples/small.csv", "examples/workload.csv", "examples/runs.csv"}
    assert [line for line in shown if " -o out " in f"{line} " or " -o out/ " in f"{line} "] == []


#: Too long for here, or run with real scripts and processes by test_plan_profile, test_torch_rehearsal and test_platform_story.
_ELSEWHERE = ("workload.csv", "--profile ", "test-resize")
_LIVE = ("serve", "submit", "ps", "why", "down")


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in _shown_commands()
        if not any(word in line for word in _ELSEWHERE) and line.split()[1] not in _LIVE
    ],
)
def test_command_of_the_documentation_runs(line: str, beside_examples: Path, capsys: Printed) -> None:
    arguments = shlex.split(line, comments=True)[1:]
    for other in _shown_commands():
        # a command that reads what another one wrote comes after it
        if any(f" -o {name}" in other for name in arguments if name.startswith("out/")) and other != line:
            assert run(shlex.split(other, comments=True)[1:]) == 0
    if arguments[0] == "predict":
        pytest.importorskip("torch", reason="tracing a model needs PyTorch")
    assert run(arguments) == 0, capsys.readouterr().err
    if "-o" in arguments:
        assert (beside_examples / arguments[arguments.index("-o") + 1]).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_the_documentation_runs(page: Path, beside_examples: Path) -> None:
    pytest.importorskip("pandas")
    blocks = _blocks(page, "python")
    assert blocks
    exec("\n".join(blocks), {"__name__": "documentation"})

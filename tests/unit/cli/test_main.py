"""The entry point: help without numpy, one line for every error, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.cli import commands, main
from coadapt.errors import InfeasibleError, InputError, InvariantError

_LIGHT = """
import sys
from coadapt.cli.main import run
code = run({arguments!r})
print(code, len(sys.modules), *sorted(m for m in sys.modules if m.split(".")[0] in ("coadapt", "numpy", "scipy", "msgspec", "rich")), file=sys.stderr)
"""


def _modules_after(*arguments: str) -> tuple[int, int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _LIGHT.format(arguments=list(arguments))],
        capture_output=True,
        text=True,
        check=True,
    )
    code, count, *names = done.stderr.split()
    return int(code), int(count), set(names)


def test_help_imports_the_group_and_nothing_else() -> None:
    code, count, names = _modules_after("--help")
    assert code == 0
    ours = {"main", "commands"}
    assert names - {"coadapt.errors"} == {"coadapt", "coadapt.cli", *(f"coadapt.cli.{name}" for name in ours)}
    assert count < 250  # the standard library's share of click; numpy alone would bring as many again


@pytest.mark.parametrize(
    "command",
    [
        *("simulate", "compare", "size", "policies", "trace"),
        *("watch", "predict", "profile", "calibration", "pool", "test-resize"),
    ],
)
def test_help_of_a_command_does_not_import_numpy(command: str) -> None:
    code, _, names = _modules_after(command, "--help")
    assert code == 0
    assert not names & {"numpy", "scipy", "msgspec", "rich"}


def test_import_of_the_package_imports_nothing_of_it() -> None:
    script = (
        "import sys, coadapt; print(*sorted(m for m in sys.modules if m.startswith(('coadapt', 'numpy'))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["coadapt"]


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    import coadapt

    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"coadapt {coadapt.__version__}\n"


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    shown = capsys.readouterr().out
    names = ("simulate", "compare", "size", "policies", "trace", "calibration", "pool")
    assert all(name in shown for name in names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulat"], "unknown command 'simulat'; did you mean 'simulate'?"),
        (["simulate"], "missing argument 'TRACE' (see 'coadapt simulate --help')"),
        (["simulate", "x", "--polcy", "fifo"], "--policy"),
        (["simulate", "x", "--interval", "soon"], "'soon' is not a duration"),
        (
            ["simulate", "x", "--interval", "1e12"],
            "'1e12' is not a duration; write plain numbers without exponent",
        ),
        (["simulate", "x", "--policy", "FIFO"], "did you mean 'fifo'?"),
        (["simulate", "x", "--noise", "nan"], "'--noise': 'nan' is not a finite number"),
        (["size", "x", "--wait-p90", "1h", "--node", "0"], "--node 0: must have at least 1 GPU"),
        (["trace", "generate", "-o", "x.csv", "--jobs", "0"], "0 jobs: the number must be from 1"),
        (["simulate", "x", "--json", "--csv"], "exclude each other"),
        (["simulate", "x", "--seed", "-1"], "-1"),
        (["compare", "x", "--processes", "0"], "at least one"),
        (["size", "x"], "no goal"),
        (["trace", "inof"], "info"),
    ],
)
def test_usage_errors_are_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("coadapt: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("the value\nis wrong"), 2, "coadapt: the value is wrong\n"),
        (
            OSError(36, "File name too long", "x" * 300),
            2,
            f"coadapt: cannot use {'x' * 200} ...: File name too long\n",
        ),
        (main.Terminated(), 143, "coadapt: terminated; nothing was written\n"),
        (InfeasibleError("no"), 3, "coadapt: no\n"),
        (InvariantError("broken"), 1, "coadapt: broken\n"),
        (KeyboardInterrupt(), 130, "coadapt: interrupted; nothing was written\n"),
        (
            ZeroDivisionError("by zero"),
            1,
            "coadapt: internal error, please report it: ZeroDivisionError: by zero; --debug prints the traceback\n",
        ),
    ],
)
def test_errors_have_their_exit_codes(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(ctx: object) -> None:
        raise error

    monkeypatch.setattr(commands.group, "invoke", fail)
    assert main.run(["policies"]) == code
    assert capsys.readouterr().err == said


def test_debug_shows_the_traceback_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(ctx: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(commands.group, "invoke", fail)
    assert main.run(["policies", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_blas_is_told_to_use_one_thread_unless_the_user_said_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import os

    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    main.run(["--version"])
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_nothing_heavy_is_imported_before_an_interrupt_can_be_caught() -> None:
    script = "import sys, coadapt.cli.main; print('click' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_interrupt_inside_exec_still_gives_our_exit_code(tmp_path: Path) -> None:
    code = """
import sys
from coadapt.cli import main
try:
    exec("raise KeyboardInterrupt")
except KeyboardInterrupt as error:
    sys.exit(main._failed(error, False))
"""
    (tmp_path / "interrupted.py").write_text(code)
    # only ``python -m`` looks at what the interpreter remembers
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (130, "coadapt: interrupted; nothing was written\n")

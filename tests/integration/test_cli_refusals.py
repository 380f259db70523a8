"""The command line with bad input: one line, exit code 2, nothing written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coadapt.cli.main import run
from tests.integration.command_line import HEADER, SMALL, Printed, coadapt_command


def _text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def _truncated(path: Path) -> None:
    packed = gzip.compress((HEADER + "".join(f"j{n},{n},1,100\n" for n in range(3000))).encode())
    path.write_bytes(packed[: len(packed) // 2])


BAD_TRACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (_text(""), "is empty"),
    "header only": (_text(HEADER), "has no jobs"),
    "wrong columns": (_text("name,when,howmany\na,1,2\n"), "no known trace begins with"),
    "unknown column": (_text("job,submit_s,gpus,duraton_s\na,0,1,5\n"), "did you mean 'duration_s'"),
    "negative time": (_text(HEADER + "a,-5,1,100\n"), ":2: column 'submit_s'"),
    "negative duration": (_text(HEADER + "a,5,1,-100\n"), ":2: column 'duration_s'"),
    "no number": (_text(HEADER + "a,0,1,100\nb,0,two,100\n"), ":3: column 'gpus'"),
    "not UTF-8": (
        lambda path: path.write_bytes(HEADER.encode() + b"\xff\xfe,0,1,100\n") and None,
        "is not UTF-8",
    ),
    "truncated gzip": (_truncated, "is truncated"),
    "unknown profile": (_text("job,submit_s,gpus,profile\na,0,1,gpt\n"), "unknown profile 'gpt'"),
    "missing": (lambda path: None, "cannot open the trace"),
}


@pytest.mark.parametrize("command", ["simulate", "compare", "size", "info"])
@pytest.mark.parametrize("kind", BAD_TRACES)
def test_bad_trace_is_one_line_and_nothing_is_written(
    kind: str, command: str, tmp_path: Path, capsys: Printed
) -> None:
    make, said = BAD_TRACES[kind]
    trace, home = tmp_path / "trace.csv", tmp_path / "home"
    home.mkdir()
    make(trace)
    out = ["-o", str(home / "out")]
    arguments = {
        "simulate": ["simulate", str(trace), "--policy", "fifo", *out],
        "compare": ["compare", str(trace), "--policies", "fifo", *out],
        "size": ["size", str(trace), "--wait-p90", "1h"],
        "info": ["trace", "info", str(trace)],
    }
    _is_refused(arguments[command], said, home, capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "tiresais"], "unknown policy 'tiresais'; did you mean 'tiresias'?"),
        (["--cluster", "sixteen"], "'sixteen' is not a group of nodes"),
        (["--cluster", "0x4"], "is not a group of nodes"),
        (["--cluster", "1x4"], "job 'big-1' does not fit: it requests 8 GPUs, but the cluster 1x4 has 4"),
        (["--placement", "packd"], "unknown placement 'packd'; did you mean 'packed'?"),
        (["--format", "slrum"], "unknown trace format 'slrum'; did you mean 'slurm'?"),
        (["--policy-option", "queues"], "is not NAME=VALUE"),
        (["--policy", "tiresias", "--policy-option", "quees=2"], "did you mean 'queues'?"),
        (
            ["--policy", "tiresias", "--policy-option", "queues=two"],
            "tiresias option 'queues': 'two' is not a whole number",
        ),
        (["--policy", "tiresias", "--policy-option", "queues=9"], "queues need"),
        (
            ["--policy-option", "growth=0"],
            "coadapt: policy 'coadapt': growth must be a number from 1 to 1e+09; got 0",
        ),
        (["--interference", "1"], "interference 1 is invalid"),
        (["--interference", "0.5", "--shared-links"], "use one of them"),
        (["--profiles", "/no/such/place"], "is not a directory of measured tasks"),
        (["--policy", "pollux", "--cluster", "2x8:t4,2x8:a100"], "supports one GPU type"),
    ],
)
def test_bad_option_is_one_line_and_nothing_is_written(
    arguments: list[str], said: str, tmp_path: Path, capsys: Printed
) -> None:
    _is_refused(
        ["simulate", SMALL, "--cluster", "2x4", *arguments, "-o", str(tmp_path / "out")],
        said,
        tmp_path,
        capsys,
    )


def test_gpu_type_that_the_cluster_lacks_is_refused(tmp_path: Path, capsys: Printed) -> None:
    trace, home = tmp_path / "trace.csv", tmp_path / "home"
    home.mkdir()
    trace.write_text("job,submit_s,gpus,duration_s,gpu_type\na,0,1,100,\nb,0,1,100,v100\n")
    arguments = ["simulate", str(trace), "--policy", "fifo", "--cluster", "1x4:t4"]
    _is_refused(
        [*arguments, "-o", str(home / "out")], "job 'b' does not fit: it requests v100 GPUs", home, capsys
    )
    assert run([*arguments, "--any-gpu-type", "--json"]) == 0


def test_directory_with_other_files_is_refused_before_anything_runs(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert run(["simulate", SMALL, "--cluster", "2x4", "-o", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "not ours (thesis.tex)" in err
    assert "by --force" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def _is_refused(arguments: list[str], said: str, home: Path, capsys: Printed) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("coadapt: ")
    assert err.count("\n") == 1
    assert "internal error" not in err
    assert list(home.iterdir()) == []


def test_bad_input_in_a_real_process_has_no_traceback(tmp_path: Path) -> None:
    done = coadapt_command("simulate", SMALL, "--policy", "tiresais", "-o", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "coadapt: unknown policy 'tiresais'; did you mean 'tiresias'?\n"


def test_skip_bad_goes_on_and_says_what_it_skipped(tmp_path: Path, capsys: Printed) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADER + "a,0,1,100\nb,0,x,100\nc,0,64,100\n")
    assert run(["simulate", str(trace), "--policy", "fifo", "--cluster", "1x4", "--skip-bad", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["num_jobs"] == 1
    assert "skipped 1 bad row" in err
    assert "dropped 1 job for which the cluster has no place; first: 'c'" in err


@pytest.mark.parametrize("option", [[], ["-o"], ["--profiles"]])
def test_name_that_is_too_long_is_one_line(option: list[str], capsys: Printed) -> None:
    assert run(["simulate", SMALL, *option, "x" * 5000] if option else ["simulate", "x" * 5000]) == 2
    err = capsys.readouterr().err
    assert "too long" in err
    assert err.count("\n") == 1
    assert len(err) < 400

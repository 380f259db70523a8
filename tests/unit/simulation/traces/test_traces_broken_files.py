"""Whatever is in a file, the answer is a workload or one clear CoadaptError."""

from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import SAMPLES, a_profiled_spec

from coadapt.errors import CoadaptError, InputError, TraceError
from coadapt.plugins import FORMATS
from coadapt.simulation.traces import PaiFormat, open_trace, read_trace

FILES = sorted(path for path in SAMPLES.rglob("*") if path.is_file())
few = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)


def survives(data, format, strict):
    """Read bytes as a trace; any error but ours goes through."""
    stream = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    if format == "pai":
        format = PaiFormat(io.StringIO((SAMPLES / "pai/pai_task_table.csv").read_text()), "tasks")
    elif format == "pai-tasks":
        format, stream = (
            PaiFormat(stream, "tasks"),
            io.StringIO((SAMPLES / "pai/pai_job_table.csv").read_text()),
        )
    try:
        found = read_trace(stream, file="f", format=format, strict=strict, profiles=a_profiled_spec)
    except CoadaptError as error:
        message, times = str(error), []
    else:
        message, times = "", [submission.at for submission in found.jobs]
        assert times
    assert "\n" not in message
    assert times == sorted(times)


@pytest.mark.parametrize("format", [None, "pai-tasks", *FORMATS])
@few
@given(data=st.binary(max_size=200), strict=st.booleans())
def test_random_bytes_never_crash_a_reader(format, data, strict):
    survives(data, format, strict)


CELLS = [
    "",
    "-1",
    "0",
    "nan",
    "1e999",
    "9" * 400,
    "x",
    "\u00b2",
    '"',
    "|",
    ",",
    "\n",
    "\r",
    "\0",
    "None",
    "[",
    "{",
    "1_0",
    "+",
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@few
@given(data=st.data(), strict=st.booleans())
def test_mutated_samples_never_crash_a_reader(path, data, strict):
    text = path.read_bytes()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        to = min(len(text), at + data.draw(st.integers(0, 12)))
        piece = data.draw(st.one_of(st.sampled_from(CELLS).map(str.encode), st.binary(max_size=4)))
        text = text[:at] + piece + text[to:]
    format = {"pai_job_table.csv": "pai", "pai_task_table.csv": "pai-tasks"}.get(path.name)
    survives(
        text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text, format, strict
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nonsense_in_any_cell_never_crashes_a_reader(path):
    lines = path.read_text().splitlines()
    delimiter = "|" if path.name == "slurm.txt" else " " if path.name == "log.swf" else ","
    format = {"pai_job_table.csv": "pai", "pai_task_table.csv": "pai-tasks"}.get(path.name)
    for number in (0, 1, len(lines) - 1):
        cells = lines[number].split(delimiter)
        for place in range(len(cells)):
            for cell in ("", "-5", "1e999", "x", "0", "9" * 5000):
                changed = delimiter.join([*cells[:place], cell, *cells[place + 1 :]])
                text = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                survives(text.encode(), format, strict=False)


def test_gzip_is_told_by_its_content(tmp_path):
    packed = tmp_path / "trace.csv"
    packed.write_bytes(gzip.compress((SAMPLES / "philly.csv").read_bytes()))
    assert open_trace(packed).jobs == open_trace(SAMPLES / "philly.csv").jobs


def test_byte_order_mark_and_windows_line_ends_are_no_obstacle(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_bytes(b"\xef\xbb\xbf" + (SAMPLES / "helios.csv").read_bytes().replace(b"\n", b"\r\n"))
    assert open_trace(file).jobs == open_trace(SAMPLES / "helios.csv").jobs


ROWS = [f"2017-10-09 07:01:{n % 60:02},{n * n + 1},1,0,{n * 7919 % 1000}\n" for n in range(2000)]
PACKED = gzip.compress(("timestamp,duration,num_gpus,gpu_time,cluster\n" + "".join(ROWS)).encode())


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (PACKED[:-20], "is truncated"),
        (PACKED[:60] + b"\xff" * 40 + PACKED[100:], "cannot be read"),
        (b"\x1f\x8bnonsense", "cannot be read"),
        (b"job,submit_s,gpus\n\xff\xfe,1,1\n", "is not UTF-8"),
        ("job,submit_s,gpus\n".encode("utf-16"), "is not UTF-8"),
        (b"job,submit_s,gpus,duration_s\na,1,1,1\0\n", "NUL byte"),
        (b'job,submit_s,gpus,duration_s\n"' + b"x" * 200_000 + b'",1,1,1\n', "field larger"),
        (b"[" * 100_000, "is not a Philly job log"),
    ],
)
def test_broken_file_gets_one_clear_line(tmp_path, data, problem):
    file = tmp_path / "trace"
    file.write_bytes(data)
    with pytest.raises(TraceError, match=problem) as caught:
        open_trace(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 400


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        open_trace(tmp_path / "nowhere.csv")


def test_directory_without_tables_is_refused(tmp_path):
    with pytest.raises(InputError, match="directory without pai_job_table"):
        open_trace(tmp_path)
    (tmp_path / "pai_job_table.csv").write_text("j1,i1,userA,Terminated,1000.0,1600.0\n")
    with pytest.raises(InputError, match="task table must be in the same directory"):
        open_trace(tmp_path)


def test_pai_names_the_table_a_mistake_is_in(tmp_path):
    (tmp_path / "pai_job_table.csv").write_text("j1,i1,userA,Terminated,1000.0,1600.0\n")
    tasks = tmp_path / "pai_task_table.csv"
    tasks.write_text("j1,ps,1.0,Terminated,1010.0,1590.0,600.0,29.3,50.0,\nj1,ps,few,Failed,1.0,2.0,3,4,5,\n")
    with pytest.raises(TraceError) as caught:
        open_trace(tmp_path)
    assert (caught.value.file, caught.value.line, caught.value.column) == (str(tasks), 2, "inst_num")


def test_byte_that_is_not_utf8_is_named_by_its_line(tmp_path):
    file = tmp_path / "trace.csv"
    rows = b"".join(b"j%d,0,1,5\n" % n for n in range(3000))
    file.write_bytes(b"job,submit_s,gpus,duration_s\n" + rows + b"caf\xe9,0,1,5\n" + rows)
    with pytest.raises(TraceError, match="is not UTF-8") as caught:
        open_trace(file)
    assert caught.value.line == 3002


def test_file_without_a_line_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("coadapt.simulation.traces._open._LONGEST_LINE", 1000)
    file = tmp_path / "trace.csv"
    file.write_bytes(b"\0" * 5000)
    with pytest.raises(InputError, match="no line end in its first 1,000 characters"):
        open_trace(file)


def test_duration_may_be_less_than_start_to_end(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("job,submit_s,gpus,duration_s,start_s,end_s\na,0,1,20,5,35\n")
    assert open_trace(file).jobs[0].spec.duration_s == 20


def test_bounds_that_say_nothing_new_need_no_profile(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("job,submit_s,gpus,duration_s,min_gpus,max_gpus\na,0,4,20,4,4\n")
    assert open_trace(file).jobs[0].spec.worker.max == 4


def test_json_line_may_hold_colons(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"job": "a:b:c", "submit_s": 0, "gpus": 1, "duration_s": 5}\n')
    assert open_trace(file).jobs[0].job == "a:b:c"

"""``coadapt trace`` and ``policies``: what there is to simulate."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from coadapt.cli.main import run
from tests.integration.command_line import SMALL, WORKLOAD, Printed


def test_policies_lists_every_policy_with_its_options(capsys: Printed) -> None:
    assert run(["policies"]) == 0
    out = capsys.readouterr().out
    for text in (
        "fifo\n",
        "fair-share (alias drf)",
        "thresholds=57600",
        "oracle=false",
        "p=-1",
        "gittins=true",
        "GPU-seconds of service at which a job moves to the next queue",
    ):
        assert text in out
    assert run(["policies", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)][:2] == ["coadapt", "fifo"]


def test_trace_info_convert_and_generate(tmp_path: Path, capsys: Printed) -> None:
    made = tmp_path / "made.csv"
    assert (
        run(
            [
                "trace",
                "generate",
                "--seed",
                "1",
                "--jobs",
                "60",
                "--hours",
                "3",
                "--no-long-jobs",
                "-o",
                str(made),
            ]
        )
        == 0
    )
    assert made.read_text() == Path(WORKLOAD).read_text()
    capsys.readouterr()
    assert run(["trace", "generate", "-o", str(made)]) == 2
    assert "exists" in capsys.readouterr().err
    packed = tmp_path / "packed.jsonl.gz"
    assert run(["trace", "convert", str(made), str(packed)]) == 0
    capsys.readouterr()
    assert run(["trace", "convert", str(packed), "-"]) == 0
    assert capsys.readouterr().out == made.read_text()
    assert run(["trace", "info", str(packed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 60
    assert run(["trace", "info", SMALL]) == 0
    out = capsys.readouterr().out
    assert "start times          recorded" in out
    # the shorthand with + is understood by compare and by simulate
    assert f"Next: coadapt compare {SMALL} --clusters 1x8" in out
    assert run(["trace", "convert", SMALL, str(tmp_path / "x.txt")]) == 2


def test_map_profiles_makes_models_of_recorded_jobs(capsys: Printed) -> None:
    assert run(["trace", "info", SMALL, "--unknown-models", "profiles", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["profiles"]
    recorded_h = sum(
        int(job["gpus"]) * (float(job["end_s"]) - float(job["start_s"])) / 3600
        for job in csv.DictReader(Path(SMALL).read_text().splitlines())
    )
    assert f"--unknown-models profiles changes the workload: {recorded_h:.0f} GPU-hours were recorded" in err


def test_trace_alone_shows_its_help(capsys: Printed) -> None:
    assert run(["trace"]) == 2
    out, err = capsys.readouterr()
    assert "convert" in out
    assert err == ""

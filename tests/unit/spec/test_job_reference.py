"""The reference of the job file: made from the one table of keys, and so current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import coadapt.spec
from coadapt.cli.main import run
from coadapt.errors import InputError
from coadapt.spec.job_file import KEYS, Key, job_spec, names_below, read_job
from coadapt.spec.job_reference import PAGE, SCHEMA, example_file, example_of, reference_page, schema_file

DOCS = Path(__file__).parents[3] / "docs"
MAKE = "run: python -m coadapt.spec.job_reference docs"


def test_page_and_schema_are_current() -> None:
    assert (DOCS / PAGE).read_text() == reference_page(), MAKE
    assert (DOCS / SCHEMA).read_text() == schema_file(), MAKE


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_key_is_explained_and_its_example_is_right(key: Key) -> None:
    assert f"| `{key.name}` |" in reference_page()
    assert key.meaning.endswith(".")
    job_spec({"run": "python train.py", **example_of(key)})


@pytest.mark.parametrize("key", [key for key in KEYS if key.kind != "mapping"], ids=lambda key: key.name)
def test_schema_and_reader_agree_on_what_a_key_is(key: Key) -> None:
    """A list is no value of any key but of those that the schema says may be one."""
    level, _, name = key.name.rpartition(".")
    schema = coadapt.spec.job_schema()["properties"]
    found = (schema[level]["properties"] if level else schema)[name]
    assert found["examples"] == [key.example]
    part: dict[str, Any] = example_of(key)
    (part[level] if level else part)[name] = [[]]
    with pytest.raises(InputError, match=name):
        job_spec({"run": "x", **part})


def test_schema_names_every_key_and_no_other() -> None:
    schema = coadapt.spec.job_schema()
    assert list(schema["properties"]) == names_below("")
    assert not schema["additionalProperties"]
    for level in ("resources", "batch"):
        assert list(schema["properties"][level]["properties"]) == names_below(level)


def test_example_is_a_job_file_also_without_its_comment_marks(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(example_file())
    assert read_job(str(path)).spec.name == "cifar10"
    whole = [
        line.replace("# ", "", 1) if line.strip().startswith("# ") and ": " in line and line.strip()[-1] != "." else line
        for line in example_file().splitlines()
        if "passes" not in line
    ]  # fmt: skip
    path.write_text("\n".join(whole) + "\n")
    assert {*yaml.safe_load(path.read_text())} == {*names_below("")} - {"passes"}
    assert read_job(str(path)).spec.retries == 2


def test_submit_prints_example_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "--example"]) == 0
    assert capsys.readouterr().out == example_file()
    assert run(["submit", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == coadapt.spec.job_schema()

"""The reference of the job file, made from its one table of keys: JSON Schema, page and commented example.

``python -m coadapt.spec.job_reference docs`` writes ``docs/job-file.md`` and ``docs/job-file.schema.json``; a test compares them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from coadapt.spec.job_file import KEYS, Key, Kind, names_below

PAGE, SCHEMA = "job-file.md", "job-file.schema.json"
_TEXT = {"type": "string"}
_TEXT_OR_NUMBER = {"type": ["string", "number"]}
_TYPES: dict[Kind, dict[str, Any]] = {
    "text": _TEXT_OR_NUMBER,
    "command": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]
    },
    "names": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "choice": _TEXT,
    "variables": {"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}},
    "target": {"type": "string", "maxLength": 200, "pattern": r"^[^<>=]*[^<>=\s]\s*(>=|<=|=>|=<|>|<)\s*[^<>=%\s]+\s*%?\s*$"},
    "deadline": _TEXT_OR_NUMBER,
    "duration": _TEXT_OR_NUMBER,
    "size": _TEXT_OR_NUMBER,
    "gpus": {"type": ["string", "integer"]},
    "range": {"type": ["string", "integer"], "pattern": r"^\s*\d+\s*(\.\.\s*\d+)?\s*$"},
    "money": _TEXT_OR_NUMBER,
}  # fmt: skip
#: Kinds in words.
_WORDS: dict[Kind, str] = {
    "text": "text",
    "command": "command",
    "names": "name or list of names",
    "whole": "whole number",
    "number": "number",
    "flag": "true or false",
    "choice": "one of",
    "variables": "mapping of names to texts",
    "mapping": "mapping",
    "target": "target",
    "deadline": "duration or moment",
    "duration": "duration",
    "size": "size",
    "gpus": "GPUs",
    "range": "range",
    "money": "amount",
}


def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Coadapt job file",
        "description": "A job for 'coadapt plan' and 'coadapt submit'.",
        **_object_schema(""),
        "not": {"required": ["epochs", "passes"]},
    }


def schema_file() -> str:
    """The text of ``docs/job-file.schema.json``."""
    return json.dumps(job_schema(), indent=2) + "\n"


def _object_schema(level: str) -> dict[str, Any]:
    prefix = f"{level}." if level else ""
    below = set(names_below(level))
    keys = [key for key in KEYS if key.name.startswith(prefix) and key.name.removeprefix(prefix) in below]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key.name.removeprefix(prefix): _key_schema(key) for key in keys},
        "additionalProperties": False,
    }
    return {**schema, "required": ["initial"]} if level == "batch" else schema


def _key_schema(key: Key) -> dict[str, Any]:
    said = {"description": key.meaning + (f" Default: {key.default}." if key.default else "")}
    if key.kind == "mapping":
        return {**said, **_object_schema(key.name)}
    bounds = {"minimum": key.least, "maximum": key.most, "exclusiveMinimum": key.above}
    schema = {**said, **_TYPES[key.kind], **{name: each for name, each in bounds.items() if each is not None}}
    if key.choices:
        schema["enum"] = list(key.choices)
    return {**schema, "examples": [key.example]}


def example_of(key: Key) -> dict[str, Any]:
    """A part of a job file that contains the key and the keys that it requires."""
    level, _, name = key.name.rpartition(".")
    if not level:
        return {name: key.example}
    return {level: {**({"initial": 128} if level == "batch" else {}), name: key.example}}


def reference_page() -> str:
    """The text of ``docs/job-file.md``."""
    lines = [
        "# The job file",
        "",
        "<!-- Made from the table of keys by `python -m coadapt.spec.job_reference docs`. Change coadapt/spec/job_file.py instead. -->",
        "",
        "One YAML or JSON file describes a job for `coadapt plan` and `coadapt submit`. Both read it by the same rules: both take it,",
        "or both refuse it with the same line. Keys that only one of them uses are checked by both. `coadapt submit --example` prints a",
        "commented file, `coadapt submit --schema` the JSON Schema ([job-file.schema.json](job-file.schema.json)) for an editor.",
        "",
        "```yaml",
        *example_file(optional=False).splitlines(),
        "```",
        "",
        "| key | value | default | used by | meaning | example |",
        "|---|---|---|---|---|---|",
    ]
    for key in KEYS:
        example = f"`{json.dumps(key.example, ensure_ascii=False)}`"
        cells = (f"`{key.name}`", _value(key), key.default or "-", key.used_by, key.meaning, example)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += [
        "",
        "Times without a unit are seconds; units are ms, s, m, h, d and w. Sizes are bytes; GB is 10^9, GiB or G 2^30. A clock time such as",
        "`9:00` and a date such as `2026-11-17` need no quotes. A number such as `1e-3` is a number.",
    ]
    return "\n".join(lines) + "\n"


def _value(key: Key) -> str:
    if key.choices:
        return f"{_WORDS[key.kind]} {', '.join(key.choices)}"
    if key.least is not None and key.most is not None:
        return f"{_WORDS[key.kind]}, {key.least} to {key.most}"
    if key.least is not None:
        return f"{_WORDS[key.kind]}, {key.least} or more"
    return f"{_WORDS[key.kind]}, above {key.above:g}" if key.above is not None else _WORDS[key.kind]


#: Keys of a first job file; the example shows the others as comments.
_FIRST = (
    "name", "run", "resources", "resources.accelerators", "batch", "batch.initial", "batch.max", "batch.per_gpu", "epochs", "target", "data_size",
    "deadline",
)  # fmt: skip


def example_file(*, optional: bool = True) -> str:
    """A job file with every key explained. ``optional``: also rarely needed keys, as comments."""
    lines = []
    for key in KEYS:
        wanted = key.name in _FIRST
        if not wanted and not optional:
            continue
        indent, mark = "  " * key.name.count("."), "" if wanted else "# "
        default = f" Default: {key.default}." if key.default else ""
        plain = key.name.rpartition(".")[2]
        if optional:
            lines.append(f"{indent}# {key.meaning}{default}")
        if key.kind == "mapping":
            lines.append(f"{indent}{mark}{plain}:")
        else:
            lines.append(f"{indent}{mark}{_yaml_line(plain, key.example)}")
    return "\n".join(lines) + "\n"


def _yaml_line(name: str, example: Any) -> str:
    flow = isinstance(example, dict | list)
    value = yaml.safe_dump(
        example if flow else [example], default_flow_style=True, width=1000, allow_unicode=True
    ).strip()
    return f"{name}: {value if flow else value[1:-1]}"


def main(directory: str) -> None:
    """Write page and schema to ``directory``."""
    (Path(directory) / PAGE).write_text(reference_page(), encoding="utf-8")
    (Path(directory) / SCHEMA).write_text(schema_file(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

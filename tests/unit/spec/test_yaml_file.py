"""Files that users write in YAML."""

from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.spec.yaml_file import parse_mapping


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: a\nrun: b\n", "job.yaml:2: not YAML (key 'run' is given twice)"),
        ("envs: {A: 1, B: 2, A: 3}\n", "job.yaml:1: not YAML (key 'A' is given twice)"),
    ],
)
def test_key_given_twice_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_mapping(text, "job.yaml", "job file")
    assert str(refused.value) == message


def test_merged_and_nested_keys_are_not_given_twice() -> None:
    text = "base: &base {x: 1}\none: {<<: *base, y: 2}\ntwo: {<<: *base, x: 3}\n"
    found = parse_mapping(text, "job.yaml", "job file")
    assert found == {"base": {"x": 1}, "one": {"x": 1, "y": 2}, "two": {"x": 3}}

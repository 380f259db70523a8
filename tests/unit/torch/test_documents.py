"""What the documents say of the agent is so: variables, store keys, test names."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from coadapt.model import Batch, Configuration, Measurement
from coadapt.wire.agent import Report, Variable, decode, encode

ROOT = Path(__file__).parents[3]
PROTOCOL = (ROOT / "docs/agent-protocol.md").read_text()
TORCH = (ROOT / "docs/torch.md").read_text()
SOURCES = sorted((ROOT / "src/coadapt/torch").rglob("*.py"))


def test_every_variable_that_is_read_is_in_the_protocol() -> None:
    text = "".join(path.read_text() for path in SOURCES)
    used = set(re.findall(r"COADAPT_[A-Z_]*[A-Z]", text))
    used |= {getattr(Variable, name) for name in re.findall(r"\bVariable\.([A-Z][A-Z_]+)", text)}
    assert len(used) > 10
    table = set(re.findall(r"^\| `(COADAPT_[A-Z_]+)`", PROTOCOL, re.MULTILINE))
    assert used == table


def test_every_line_of_the_support_matrix_names_a_test_that_is_there() -> None:
    matrix = TORCH.partition("## What is supported")[2].partition("\n## ")[0]
    lines = [line for line in matrix.splitlines() if line.startswith("|") and "---" not in line][1:]
    assert len(lines) > 10
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    for line in lines:
        names = re.findall(r"`(test_\w+)`", line)
        assert names, f"no test is named: {line}"
        assert set(names) <= there, line


def test_the_batch_of_the_protocol_decodes() -> None:
    text = re.search(r"`(\{\"initial\".*?\})`", PROTOCOL)
    assert text is not None
    assert msgspec.json.decode(text[1], type=Batch).max == 4096


def test_the_report_of_the_protocol_decodes_and_names_the_fields() -> None:
    shown = re.search(r"```json\n(.*?)```", PROTOCOL, re.DOTALL)
    assert shown is not None
    config = Configuration(nodes=1, replicas=2, atomic_batch=8)
    measured = msgspec.json.encode(Measurement(config=config, work=5.0)).decode()
    report = decode(shown[1].replace("MEASUREMENT, ...", measured))
    assert report.number == 17
    assert decode(encode(report)) == report
    told = {*Report.__struct_fields__, *Measurement.__struct_fields__, *Configuration.__struct_fields__}
    # parameter servers' part of a configuration is the simulator's
    missing = [name for name in told - {"servers"} if not re.search(rf"\b{name}\b", PROTOCOL)]
    assert not missing


@pytest.mark.parametrize("key", ["ready{", "running{"])
def test_the_keys_of_the_protocol_are_the_codes(key: str) -> None:
    assert key in PROTOCOL
    assert key in (ROOT / "src/coadapt/torch/elastic/in_place_resize.py").read_text()

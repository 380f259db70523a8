"""What the product decides, plans and folds is what was recorded: bit by bit, or but for the words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.builders import every_policy
from tests.digests.digest import of_fold, of_log, wordless
from tests.digests.plans import QUESTIONS, without
from tests.digests.simulations import WORKLOADS
from tests.digests.table import (
    EVERYWHERE,
    LOGS,
    PARTS,
    WORDS_MAY_CHANGE,
    Recorded,
    lines,
    recorded,
    records_in,
)

ROOT = Path(__file__).parents[2]


def computed(part: str) -> Recorded:
    """A part, in a process of its own: there OpenBLAS has one thread, and nothing was computed before."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.digests", "--json", part],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Recorded)


@pytest.mark.parametrize("part", PARTS)
def test_digests_are_those_recorded(part: str) -> None:
    now, then = computed(part), recorded()
    if part not in EVERYWHERE and now.fingerprint != then.fingerprint:
        others = sorted(
            name
            for name in now.fingerprint.keys() | then.fingerprint.keys()
            if now.fingerprint.get(name) != then.fingerprint.get(name)
        )
        pytest.skip(f"recorded with another {', '.join(others)}: floating-point results may differ")
    found = list(lines(then.parts[part], now.parts[part]))
    assert [line.name for line in found if not line.same_but_words] == [], "other choices or numbers"
    if not WORDS_MAY_CHANGE:
        assert [line.name for line in found if not line.same] == [], "other words"


def test_every_policy_question_and_log_has_its_digests() -> None:
    parts = recorded().parts
    assert set(parts["simulations"]) == {
        f"{workload}/{policy}"
        for workload, (_, unable) in WORKLOADS.items()
        for policy in every_policy()
        if policy not in unable
    }
    assert set(parts["plans"]) == set(QUESTIONS)
    assert len(parts["folds"]) == len(LOGS)


def test_digest_without_words_is_of_everything_else() -> None:
    records = records_in(LOGS[-1])
    muted = [msgspec.structs.replace(record, event=wordless(record.event)) for record in records]
    assert of_log(muted).wordless == of_log(records).wordless
    assert of_log(muted).whole != of_log(records).whole
    later = [*records[:-1], msgspec.structs.replace(records[-1], at=records[-1].at + 0.5)]
    assert of_log(later).wordless != of_log(records).wordless
    assert of_fold(later).wordless != of_fold(records).wordless


def test_words_are_left_out_at_any_depth() -> None:
    plan = {"why": "x", "rows": [{"why": "y", "gpus": 2}], "relaxations": [{"text": "z", "value": 1.5}]}
    assert without(plan, frozenset({"why", "text"})) == {
        "rows": [{"gpus": 2}],
        "relaxations": [{"value": 1.5}],
    }

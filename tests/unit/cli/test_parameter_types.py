"""Numbers that are none, or that nobody can mean: refused in one line before anything runs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.cli.commands import group
from coadapt.cli.main import run
from coadapt.cli.parameter_types import Duration, Finite

_PREDICT = "predict train.py:f --input 3 --batch 4 --gpu t4 --data-size 100"
_NOT_FINITE = ("nan", "inf", "-inf", "1e999")


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(words.split()) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "internal error" not in said.err
    return said.err


@pytest.mark.parametrize("value", _NOT_FINITE)
@pytest.mark.parametrize(
    "words",
    [
        f"{_PREDICT} --overlap",
        f"{_PREDICT} --network",
        f"{_PREDICT} --epochs",
        f"{_PREDICT} --timeout",
        "profile layers --seconds",
        "profile run --seconds",
        "watch train.log --total",
        "trace generate -o out.csv --hours",
        "trace generate -o out.csv --load",
        "simulate trace.csv --noise",
        "simulate trace.csv --interference",
        "compare trace.csv --stragglers",
    ],
)
def test_a_number_that_is_not_finite_is_refused(
    words: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = words.split()[-1]
    said = refused(f"{words}={value}" if value.startswith("-") else f"{words} {value}", capsys)
    assert option in said
    assert "finite" in said or "not a duration" in said


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (f"{_PREDICT} --overlap 1.5", "more than 1"),
        (f"{_PREDICT} --overlap=-0.1", "less than 0"),
        (f"{_PREDICT} --network 0", "not more than 0"),
        (f"{_PREDICT} --epochs 0", "not more than 0"),
        (f"{_PREDICT} --epochs 1e308", "more than 1e+09"),
        (f"{_PREDICT} --replicas {10**30}", "1<=x<="),
        (f"{_PREDICT} --gpus-per-node {10**30}", "1<=x<="),
        (f"predict train.py:f --input 3 --batch {10**30} --gpu t4", "1<=x<="),
        (f"{_PREDICT} --data-size {10**400}", "1<=x<="),
        (f"{_PREDICT} --overlap often", "not a number"),
        ("profile layers --seconds 0", "not more than 0"),
        ("profile layers --seconds 1e300", "more than"),
        ("watch train.log --total 0", "not more than 0"),
        ("watch train.log --total 1e308", "more than 1e+18"),
    ],
)
def test_a_number_out_of_bounds_is_refused_by_its_rule(
    words: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rule in refused(words, capsys)


def test_no_command_takes_floats_by_the_types_of_click() -> None:
    """They let a NaN through: whoever adds an option is told here."""
    context = click.Context(group)
    seen = 0
    left = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    while left:
        name, command = left.pop()
        assert command is not None
        if isinstance(command, click.Group):
            left += [
                (f"{name} {each}", command.get_command(context, each))
                for each in command.list_commands(context)
            ]
        for parameter in command.params:
            seen += isinstance(parameter.type, Finite | Duration)
            kind = type(parameter.type).__name__
            assert not isinstance(parameter.type, click.types.FloatParamType), (
                f"{name} {parameter.name}: {kind}"
            )
    assert seen > 10


@given(st.floats())
def test_what_is_taken_is_finite_and_within_bounds(number: float) -> None:
    kind = Finite(-1, 5, above=-0.5)
    try:
        taken = kind.convert(repr(number), None, None)
    except click.BadParameter:
        assert not -0.5 < number <= 5
    else:
        assert taken == number
        assert -0.5 < number <= 5


def test_a_duration_too_long_for_a_number_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "not a duration" in refused(f"simulate trace.csv --restart-time {'9' * 400}", capsys)

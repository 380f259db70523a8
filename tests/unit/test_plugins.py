from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from coadapt.errors import InputError, UnknownNameError
from coadapt.plugins import (
    POLICIES,
    Option,
    assignments,
    has_option,
    make_policy,
    option_help_of,
    options_of,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (bool, "true", True),
        (bool, "No", False),
        (int, "12", 12),
        (float, "-1", -1.0),
        (float | None, "none", None),
        (float | None, "2.5", 2.5),
        (Sequence[float], "3250,7200", (3250.0, 7200.0)),
        (tuple[int, ...], "(1, 2)", (1, 2)),
        (Mapping[str, float], "prod:2,research:1", {"prod": 2.0, "research": 1.0}),
        (Literal["team", "user"], "user", "user"),
        (str, "a b", "a b"),
    ],
)
def test_option_is_parsed_by_its_type(kind: object, text: str, value: object) -> None:
    assert Option("x", kind, None).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (bool, "maybe", "neither true nor false"),
        (int, "1.5", "not a whole number"),
        (float, "fast", "not a number"),
        (Sequence[float], "1,x", "not a number"),
        (Literal["team", "user"], "group", "not one of team, user"),
        (Mapping[str, float], "prod", "not KEY:VALUE"),
        (float, "nan", "not a finite number"),
        (float, "-inf", "not a finite number"),
        (float, "1e999", "not a finite number"),
        (int, "9" * 400, "too large"),
        (Sequence[float], "1,inf", "not a finite number"),
        (Mapping[str, float], "prod:nan", "not a finite number"),
        (Mapping[str, float], "prod:1,prod:2", "'prod' is given twice"),
    ],
)
def test_option_says_what_a_text_should_be(kind: object, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Option("x", kind, None).parse(text)


def test_option_in_seconds_takes_a_duration() -> None:
    assert Option("restart_s", float, 30.0).parse("2m") == 120.0


def test_policy_gets_its_options_from_texts() -> None:
    policy = make_policy("tiresias", {"thresholds": "3250,7200", "queues": "2"})
    assert policy.rules.thresholds == (3250.0,)


def test_policy_gets_its_options_from_values() -> None:
    assert make_policy("fifo", values={"backfill": False}).backfill is False


def test_gittins_is_tiresias_with_the_option() -> None:
    assert make_policy("gittins").gittins is True


def test_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="unknown tiresias option 'thresold'; did you mean 'thresholds'"):
        make_policy("tiresias", {"thresold": "3"})


def test_policy_without_options_says_so() -> None:
    with pytest.raises(InputError, match="recorded has no options"):
        make_policy("recorded", {"p": "3"})


def test_unknown_policy_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tiresias'"):
        make_policy("tiresais")


def test_wrong_value_names_policy_and_option() -> None:
    with pytest.raises(InputError, match="fifo option 'backfill': 'x' is neither"):
        make_policy("fifo", {"backfill": "x"})


@pytest.mark.parametrize("name", POLICIES.names())
def test_every_policy_can_be_made_and_its_defaults_survive_text(name: str) -> None:
    from coadapt.cli.policies import text_of

    make_policy(name)
    for option in options_of(POLICIES.load(name)).values():
        if option.default not in (None, ()):
            again = option.parse(text_of(option.default))
            assert again == (tuple(option.default) if isinstance(option.default, tuple) else option.default)


def test_aliases_stand_for_the_same_class() -> None:
    assert POLICIES.aliases("fair-share") == ["drf"]
    assert POLICIES.load("drf") is POLICIES.load("fair-share")
    assert "drf" not in [member.name for member in POLICIES.members()]


def test_assignments_split_at_the_first_equals_sign() -> None:
    assert assignments(["p=-1", "note=a=b", "min-run-s=3"]) == {"p": "-1", "note": "a=b", "min_run_s": "3"}


def test_assignment_without_a_value_is_refused() -> None:
    with pytest.raises(InputError, match="is not NAME=VALUE"):
        assignments(["oracle"])


def test_has_option_knows_what_a_policy_takes() -> None:
    assert has_option("pollux", "p")
    assert not has_option("fifo", "p")


@pytest.mark.parametrize("policy", POLICIES.names())
def test_every_option_has_help_and_no_help_is_of_another(policy: str) -> None:
    cls = POLICIES.load(policy)
    assert set(option_help_of(cls)) == set(options_of(cls))


@pytest.mark.parametrize(
    ("policy", "option", "value", "said"),
    [
        ("fifo", "backfill", "false", "neither True nor False"),
        ("fifo", "backfill", 1, "neither True nor False"),
        ("pollux", "p", float("nan"), "not a finite number"),
        ("pollux", "p", "-1", "not a number"),
        ("pollux", "p", True, "not a number"),
        ("pollux", "population", 10.0, "not a whole number"),
        ("tiresias", "thresholds", 5, "not a list"),
        ("tiresias", "thresholds", "5", "not a list"),
        ("tiresias", "thresholds", [1.0, float("inf")], "not a finite number"),
        ("fair-share", "weights", {"a": float("inf")}, "not a finite number"),
        ("fair-share", "weights", [1.0], "not a mapping"),
        ("fair-share", "min_run_s", -1.0, "less than 0"),
    ],
)
def test_value_of_another_type_is_refused(policy: str, option: str, value: object, said: str) -> None:
    with pytest.raises(InputError, match=f"{policy} option '{option}': .*{said}"):
        make_policy(policy, values={option: value})


def test_value_may_be_whole_where_a_number_is_asked_for() -> None:
    assert make_policy("tiresias", values={"thresholds": [3250], "queues": None}).rules.thresholds == (3250,)


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(InputError, match="options must be a mapping"):
        make_policy("fifo", values=[("backfill", True)])  # type: ignore[arg-type]


def test_negative_time_is_refused_as_text() -> None:
    with pytest.raises(InputError, match="fair-share option 'min_run_s': -5 is less than 0"):
        make_policy("fair-share", {"min_run_s": "-5"})

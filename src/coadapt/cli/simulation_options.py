"""Options that ``simulate``, ``compare``, ``size`` and ``trace`` share, and the scenario they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from coadapt.cli.parameter_types import DURATION, FINITE
from coadapt.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])

_READING = (
    click.option(
        "--profiles", metavar="DIR", help="Measured tasks, TASK/placements.csv ...; default: those shipped."
    ),
    click.option(
        "--curves", metavar="DIR", help="Where the validation curves of --profiles are, if elsewhere."
    ),
    click.option("--format", metavar="NAME", help="Format of the trace; default: told from its first lines."),
    click.option(
        "--map",
        "map_profiles",
        type=click.Choice(["rigid", "profiles"]),
        default="rigid",
        show_default=True,
        help="Jobs without a known model: rigid, or mapped to profiles by GPU time.",
    ),
    click.option(
        "--strict/--skip-bad",
        "strict",
        default=True,
        help="A bad row, or a job that does not fit, is an error (default), or is skipped and said.",
    ),
    click.option("--any-gpu-type", is_flag=True, help="Ignore the GPU types that jobs ask for."),
)
_WORLD = (
    click.option(
        "--interval",
        "interval_s",
        type=DURATION,
        help="Decide at multiples of this; default: when something happens.",
    ),
    click.option(
        "--restart",
        "restart_s",
        type=DURATION,
        default=30.0,
        show_default="30s",
        help="What a start or a change of placement costs.",
    ),
    click.option(
        "--interference",
        type=FINITE,
        default=0.0,
        show_default=True,
        help="Share of speed that distributed jobs lose on a shared node.",
    ),
    click.option("--links", is_flag=True, help="Instead: distributed jobs share the link of a node."),
    click.option(
        "--noise",
        type=FINITE,
        default=0.0,
        show_default=True,
        help="Noise of measured times (standard deviation of the logarithm).",
    ),
    click.option(
        "--stragglers",
        metavar="P",
        type=FINITE,
        default=0.0,
        show_default=True,
        help="Chance that a placement has a straggler.",
    ),
    click.option(
        "--placement",
        metavar="NAME",
        help="packed, tidy, most-free, aware or skew; default: the policy's own.",
    ),
    click.option(
        "--published",
        is_flag=True,
        help="The published Pollux setting: 60 s rounds, whole seconds, ncf fixed.",
    ),
    click.option("--pool", metavar="FILE", help="Past jobs that are known from the start; see --save-pool."),
)
_OUTPUT = (
    click.option("-o", "--output", metavar="DIR", help="Write the results and a report to this directory."),
    click.option(
        "--force", is_flag=True, help="Write into the directory even if it holds other files; they stay."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else."),
    click.option("--csv", "as_csv", is_flag=True, help="Print the same as CSV."),
)


def _all(options: tuple[Callable[[Any], Any], ...]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


reading_options = _all(_READING)
world_options = _all(_WORLD)
output_options = _all(_OUTPUT)
bound_option = click.option(
    "--bound",
    is_flag=True,
    help="Also compute what no policy can be better than, and show every average JCT relative to it.",
)
policy_settings = click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the policy; see 'coadapt policies'.",
)


def scenario_values(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ``Scenario`` in a command's parameters."""
    strict = given.pop("strict")
    return {**given, "skip_bad": not strict}


def one_form(as_json: bool, as_csv: bool) -> None:
    """Only one thing can be printed."""
    if as_json and as_csv:
        raise InputError("--json and --csv exclude each other")

"""Options that ``simulate``, ``compare``, ``size`` and ``trace`` share, and the scenario they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from coadapt.cli.parameter_types import DURATION, FINITE, json_option
from coadapt.errors import InputError

#: Seconds of a round in the published Gavel simulations.
GAVEL_ROUND_S = 360.0
F = TypeVar("F", bound=Callable[..., Any])

_READING = (
    click.option(
        "--profiles",
        metavar="DIR",
        help="Directory of measured tasks, TASK/placements.csv ..., or of throughputs.csv. Default: shipped.",
    ),
    click.option(
        "--curves", metavar="DIR", help="Directory of validation curves. Default: that of --profiles."
    ),
    click.option(
        "--format", metavar="NAME", help="Format of the trace. Default: detected from its first lines."
    ),
    click.option(
        "--unknown-models",
        "map_profiles",
        type=click.Choice(["rigid", "profiles"]),
        default="rigid",
        help="Jobs without a known model: run for the recorded duration (rigid), or assign a profile by GPU time.",
    ),
    click.option(
        "--strict/--skip-bad",
        "strict",
        default=True,
        help="Refuse invalid rows and jobs that do not fit, or skip them.",
    ),
    click.option("--any-gpu-type", is_flag=True, help="Ignore the GPU types that jobs request."),
)
_WORLD = (
    click.option(
        "--interval",
        "interval_s",
        type=DURATION,
        help="Decide at multiples of this time. Default: at every event.",
    ),
    click.option(
        "--restart-time",
        "restart_s",
        type=DURATION,
        default=30.0,
        show_default="30s",
        help="Time that a start or a change of placement takes.",
    ),
    click.option(
        "--interference",
        type=FINITE,
        default=0.0,
        help="Fraction of speed that distributed jobs lose on shared nodes.",
    ),
    click.option(
        "--shared-links",
        "links",
        is_flag=True,
        help="Distributed jobs share the link of a node; excludes --interference.",
    ),
    click.option(
        "--noise",
        type=FINITE,
        default=0.0,
        help="Noise of measured times: standard deviation of their logarithm.",
    ),
    click.option(
        "--stragglers",
        metavar="P",
        type=FINITE,
        default=0.0,
        help="Probability that a placement has a straggler.",
    ),
    click.option(
        "--placement", metavar="NAME", help="packed, tidy, most-free, aware or skew. Default: the policy's."
    ),
    click.option(
        "--pollux-setup",
        "published",
        is_flag=True,
        help="Set-up of the published Pollux simulations: rounds of 60 s.",
    ),
    click.option(
        "--gavel-setup",
        is_flag=True,
        help="Set-up of the published Gavel simulations: rounds of 360 s, changes take no time.",
    ),
    click.option("--pool", metavar="FILE", help="Past jobs known from the start, as written by --save-pool."),
)
_OUTPUT = (
    click.option(
        "-o", "--output", metavar="DIR", help="Write the results and an HTML report to this directory."
    ),
    click.option(
        "--force", is_flag=True, help="Write to the directory even if it contains other files; they stay."
    ),
    json_option,
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
    "--lower-bound",
    "bound",
    is_flag=True,
    help="Also compute a lower bound on the average JCT of any policy.",
)
policy_options = click.option(
    "--policy-option",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Option of the policy, see 'coadapt policies'. Repeatable.",
)


def scenario_values(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ``Scenario`` in a command's parameters."""
    strict = given.pop("strict")
    if given.pop("gavel_setup", False):
        given |= {"round_s": GAVEL_ROUND_S, "restart_s": 0.0}
    return {**given, "skip_bad": not strict}


def one_form(as_json: bool, as_csv: bool) -> None:
    """Raise an InputError if both JSON and CSV are requested."""
    if as_json and as_csv:
        raise InputError("--json and --csv exclude each other")


def next_report(output: str | None) -> str:
    """The last line of ``simulate`` and ``compare``: where the report is, or how to get one."""
    return (
        f"Next: open {output.rstrip('/')}/report.html"
        if output
        else "Next: add -o DIR to write a report with charts"
    )

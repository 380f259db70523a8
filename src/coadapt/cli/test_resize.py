"""``coadapt test-resize``: test whether a training script survives resizes and kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import Finite, json_option, seed_option
from coadapt.errors import InfeasibleError

if TYPE_CHECKING:
    from coadapt.wire import Disturbed, Rehearsed

#: A larger difference after the first step is not rounding: the initial parameters differ.
_NOT_ROUNDING = 1e-3


@click.command("test-resize", context_settings={"ignore_unknown_options": True})
@click.option("--replicas", type=click.IntRange(1, 64), default=3, help="Maximum number of replicas.")
@click.option("--disturbances", type=click.IntRange(1, 1000), default=6, help="Stops, kills and resizes.")
@seed_option
@click.option(
    "--tolerance",
    type=Finite(0),
    default=1e-5,
    help="Largest allowed relative difference of parameters; float32 on several replicas needs about 1e-3.",
)
@json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- python SCRIPT ...")
def command(
    replicas: int, disturbances: int, seed: int, tolerance: float, as_json: bool, words: tuple[str, ...]
) -> None:
    """Run a script twice, once undisturbed and once stopped, killed and resized at random steps, and compare.

    The script must use coadapt.torch. The batch size is fixed, so that the examples and the parameters of every step
    can be compared. The script must set a seed (torch.manual_seed) before it creates its model. Scripts with dropout
    or batch statistics always differ a little. Exit code 3: the runs differ.

    \b
    coadapt test-resize -- python train.py --epochs 2
    """
    from coadapt import progress
    from coadapt.planning import rehearse

    def tell(disturbed: Disturbed) -> None:
        progress.note(f"step {disturbed.step}: {disturbed.kind}, continues on {_counted(disturbed.replicas)}")

    found = rehearse(
        words,
        replicas=replicas,
        disturbances=disturbances,
        seed=seed,
        tolerance=tolerance,
        on_disturbed=None if as_json else tell,
    )
    _say(found, as_json)
    if not found.safe:
        raise InfeasibleError(_why_not(found))


def _say(found: Rehearsed, as_json: bool) -> None:
    if as_json:
        import msgspec

        terminal.say_json({**msgspec.to_builtins(found), "safe": found.safe})
        return
    if found.safe:
        terminal.say(
            f"Safe: {found.steps} steps with {found.disturbances} disturbances, every example used once, "
            f"parameters equal within {found.largest_jump:.1g}",
            bold=True,
        )
        terminal.say(f"{found.repeated} steps were repeated after kills; they do not count twice.")


def _why_not(found: Rehearsed) -> str:
    if not found.same_examples:
        return f"the disturbed run used different examples than the undisturbed one ({found.steps} steps)"
    if found.first_difference > max(found.tolerance, _NOT_ROUNDING):
        return (
            f"parameters differ by {found.first_difference:.2g} after the first step, before any disturbance: the two runs "
            "started with different parameters; call torch.manual_seed(0) before the model is created"
        )
    if not found.disturbances:
        return (
            f"not tested: the script ended after {found.steps} steps, before the first disturbance; "
            "let it train for more epochs"
        )
    return (
        f"parameters differ by up to {found.largest_jump:.2g}, by {found.final_difference:.2g} at the end "
        f"(tolerance {found.tolerance:g}); possible causes: lost state, dropout, batch statistics, float32 rounding"
    )


def _counted(replicas: int) -> str:
    return "one replica" if replicas == 1 else f"{replicas} replicas"

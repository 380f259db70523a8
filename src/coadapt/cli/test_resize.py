"""``coadapt test-resize``: whether a training script survives resizes and kills, before a cluster finds out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.parameter_types import Finite
from coadapt.errors import InfeasibleError

if TYPE_CHECKING:
    from coadapt.wire import Disturbed, Rehearsed

#: A first step that differs by more does not by rounding: its parameters were others.
_NOT_ROUNDING = 1e-3


@click.command("test-resize", context_settings={"ignore_unknown_options": True})
@click.option(
    "--replicas", type=click.IntRange(1, 64), default=3, show_default=True, help="Most replicas at once."
)
@click.option(
    "--disturbances",
    type=click.IntRange(1, 1000),
    default=6,
    show_default=True,
    help="Stops, kills and resizes.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random moments and sizes.")
@click.option(
    "--tolerance",
    type=Finite(0),
    default=1e-5,
    show_default=True,
    help="Largest relative difference of the parameters; float32 on several replicas needs about 1e-3.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- python SCRIPT ...")
def command(
    replicas: int, disturbances: int, seed: int, tolerance: float, as_json: bool, words: tuple[str, ...]
) -> None:
    """Runs a script twice: undisturbed, and stopped, killed and resized at random steps; compares the two.

    The script must use coadapt.torch. Batches are kept at their initial size, so that every step can be compared: its
    examples, and the parameters after it. So the script must begin with the same parameters each time: a seed
    (torch.manual_seed) before its model is made. Scripts with dropout or batch statistics differ a little by nature.

    \b
    coadapt test-resize -- python train.py --epochs 2
    """
    from coadapt import progress
    from coadapt.planning import rehearse

    def tell(disturbed: Disturbed) -> None:
        progress.note(f"step {disturbed.step}: {disturbed.kind}, on with {_counted(disturbed.replicas)}")

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
    from coadapt.cli import terminal

    if as_json:
        import msgspec

        row = {**msgspec.to_builtins(found), "safe": found.safe}
        terminal.say_rows([row], as_json=True, single=True)
        return
    if found.safe:
        terminal.say(
            f"Safe: {found.steps} steps through {found.disturbances} disturbances, every example once, "
            f"parameters equal to {found.largest_jump:.1g}",
            bold=True,
        )
        terminal.say(f"{found.repeated} steps were made again after kills; they do not count twice.")


def _why_not(found: Rehearsed) -> str:
    if not found.same_examples:
        return f"the disturbed run took other examples than the undisturbed one ({found.steps} steps)"
    if found.first_difference > max(found.tolerance, _NOT_ROUNDING):
        return (
            f"parameters differ by {found.first_difference:.2g} after the first step, before anything was disturbed: "
            "the two runs began with other parameters; have the script call torch.manual_seed(0) before it makes its model"
        )
    if not found.disturbances:
        return (
            f"the script was over ({found.steps} steps) before anything could be disturbed, so nothing is known; "
            "let it train for more epochs"
        )
    return (
        f"parameters differ by {found.largest_jump:.2g} at some step, {found.final_difference:.2g} at the end "
        f"(tolerance {found.tolerance:g}); dropout, batch statistics and float32 do that by nature, lost state too"
    )


def _counted(replicas: int) -> str:
    return "one replica" if replicas == 1 else f"{replicas} replicas"

"""``coadapt plan``: find the cheapest GPUs and batch size that meet a deadline and a metric."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coadapt import progress
from coadapt.cli import terminal
from coadapt.cli.parameter_types import DURATION, Finite, json_option
from coadapt.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from coadapt.planning import Planned


@click.command("plan")
@click.argument("spec", required=False)
@click.option(
    "--samples", metavar="FILE", help="Past runs as CSV: batch, workers, epochs, epoch_s and the metric."
)
@click.option("--pool", metavar="FILE", help="Past jobs like the one in SPEC, see 'coadapt pool'.")
@click.option("--deadline", metavar="WHEN", help="6h, 'tomorrow 9:00', 'friday 18:00', '2026-11-17 09:00'.")
@click.option("--target", metavar="METRIC", help='Metric to reach: "val_acc>=0.93", "wer<=25".')
@click.option("--accuracy", type=Finite(), help='Short for --target "accuracy>=...".')
@click.option(
    "--budget", metavar="AMOUNT", help="Maximum cost, in the currency of --prices, else in GPU-hours."
)
@click.option("--gpus", metavar="RANGE", help="a100:1..8, t4:4 or 1..8; several types separated by commas.")
@click.option("--batch", metavar="RANGE", help="Global batch sizes to consider, for example 32..4096.")
@click.option(
    "--per-gpu-batch", "per_gpu_max", type=click.IntRange(min=1), help="Largest batch that fits on one GPU."
)
@click.option(
    "--gpu-memory", "memory", metavar="SIZE", help="Memory of one GPU, as in 16GB. Default: datasheet."
)
@click.option(
    "--epochs",
    type=Finite(above=0, most=1e9),
    help="Work if there is no target, in epochs at the smallest batch size.",
)
@click.option(
    "--stops-at-target", "stops", is_flag=True, help="The script stops by itself once the target is reached."
)
@click.option(
    "--prices", metavar="FILE", help="Price per GPU-hour by GPU type: YAML, JSON, or CSV with gpu and price."
)
@click.option(
    "--confidence", type=Finite(), default=0.9, help="Required probability that all limits are kept."
)
@click.option("--minimize", type=click.Choice(["cost", "time"]), help="What to minimize. Default: cost.")
@click.option(
    "--maximize", type=click.Choice(["metric"]), help="Maximize the metric within the limits instead."
)
@click.option("--planner", default="exact", help="exact, or a published one: cynthia, lb-bsp, ...")
@click.option("--gpus-per-node", type=click.IntRange(min=1), default=8, help="Number of GPUs of a node.")
@click.option("--setup-time", "setup_s", type=DURATION, help="Time before the first step.")
@click.option(
    "--validation-time", "validation_s", type=DURATION, help="Time of a validation, after each epoch."
)
@click.option(
    "--checkpoint-time", "checkpoint_s", type=DURATION, help="Time of a checkpoint, after each epoch."
)
@click.option("--lr", type=Finite(above=0), help="Learning rate at the smallest batch size.")
@click.option(
    "--lr-rule",
    type=click.Choice(["linear", "sqrt", "adascale", "none"]),
    help="Scaling of the learning rate with the batch size. Default: linear.",
)
@click.option(
    "--profile",
    metavar="COMMAND",
    help="Measure with short runs of this command: 'python train.py --bs {batch_size} --epochs {epochs}'.",
)
@click.option("--max-runs", type=click.IntRange(min=1), default=12, help="Maximum number of short runs.")
@click.option("--run-epochs", type=click.IntRange(min=1), default=1, help="Epochs of a short run.")
@click.option(
    "--reference-epochs",
    type=click.IntRange(min=2),
    help="Epochs of a first full run, which measures the learning curve.",
)
@click.option(
    "--run-timeout",
    type=DURATION,
    default=600.0,
    show_default="10m",
    help="Stop a short run after this time.",
)
@click.option("--profile-time", type=DURATION, help="Time limit for all short runs together.")
@click.option("--profile-cost", type=Finite(0), help="Cost limit for all short runs together.")
@click.option("--resume", metavar="FILE", help="Save measurements to FILE and reuse those already in it.")
@click.option("--html", metavar="FILE", help="Write the plan as an HTML page.")
@click.option("--force", is_flag=True, help="Overwrite the page if it exists.")
@json_option
def command(spec: str | None, html: str | None, force: bool, as_json: bool, **given: Any) -> None:
    """Find the cheapest GPUs and batch size for a deadline and a metric. SPEC is a job file, as for submit.

    \b
    coadapt plan --samples runs.csv --target "val_acc>=0.93" --deadline "tomorrow 9:00" --gpus t4:1..16
    coadapt plan train.yaml --samples runs.csv --deadline 6h --budget 40 --prices prices.yaml
    coadapt plan --profile "python train.py --bs {batch_size} --epochs {epochs}" --epochs 10 --batch 32..512

    All columns of the table describe one run. Exit code 3: no option keeps the limits; the message says which limit
    is the binding one and what would help.
    """
    from coadapt.planning import no_answer, plan_page
    from coadapt.report import fresh_file

    planned = _planned(spec, given)
    if html is not None:
        with fresh_file(Path(html), force=force) as part:
            part.write_text(plan_page(planned), encoding="utf-8")
    if as_json:
        terminal.say_json(planned.to_dict())
    else:
        say(planned)
    if planned.plan.chosen is None:
        raise InfeasibleError(no_answer(planned))


#: Options of the measuring session; the others are fields of the request.
_MEASURING = (
    "profile",
    "max_runs",
    "run_epochs",
    "reference_epochs",
    "run_timeout",
    "profile_time",
    "profile_cost",
    "resume",
)


def _planned(spec: str | None, given: dict[str, Any]) -> Planned:
    from coadapt.planning import Caps, Request, measure_and_plan, plan_for

    minimize, maximize = given.pop("minimize"), given.pop("maximize")
    if minimize and maximize:
        raise InputError("--minimize and --maximize exclude each other")
    measuring = {name: given.pop(name) for name in _MEASURING}
    request = Request(spec=spec, objective=maximize or minimize or "cost", **given)
    if measuring["profile"] is None:
        if request.samples is None and request.pool is None:
            raise InputError(
                "no measurements given; use --samples FILE (past runs), --pool FILE (past jobs) or --profile COMMAND (short runs)"
            )
        with progress.Pulse("planning"):
            return plan_for(request)
    caps = Caps(
        runs=measuring["max_runs"],
        run_epochs=measuring["run_epochs"],
        reference_epochs=measuring["reference_epochs"],
        run_s=measuring["run_timeout"],
        total_s=measuring["profile_time"],
        cost=measuring["profile_cost"],
    )
    return measure_and_plan(request, measuring["profile"], caps, measuring["resume"])


def say(planned: Planned) -> None:
    """Print the question, the answer, the table of options, a chart of time against cost, and what to run."""
    from coadapt.planning import dot_chart, plan_text

    shown, options = plan_text(planned), len(planned.plan.rows)
    terminal.say(shown.question, dim=True)
    terminal.say(shown.headline, bold=True)
    terminal.say()
    terminal.say_table(shown.header, shown.rows)
    if options > len(shown.rows):
        terminal.say(f"  ({len(shown.rows)} of {options} options shown; --json prints all)", dim=True)
    terminal.say()
    for line in dot_chart(planned):
        terminal.say(line)
    if shown.advice:
        terminal.say()
    for line in shown.advice:
        terminal.say(line)
    for note in shown.notes:
        progress.note(note)

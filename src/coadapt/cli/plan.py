"""``coadapt plan``: the cheapest GPUs and batch size that meet a deadline and a metric.

How a plan looks in a terminal: the question, the answer, the table, the frontier as a chart of dots, what to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coadapt import progress
from coadapt.cli import terminal
from coadapt.cli.parameter_types import DURATION, Finite
from coadapt.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from coadapt.planning import Planned


@click.command("plan")
@click.argument("spec", required=False)
@click.option("--samples", metavar="FILE", help="Past runs, CSV: batch, workers, epochs, epoch_s, metric.")
@click.option("--pool", metavar="FILE", help="Past jobs like this one ('coadapt pool'); SPEC names it.")
@click.option("--deadline", metavar="WHEN", help="6h, 'tomorrow 9:00', 'friday 18:00', '2026-11-17 09:00'.")
@click.option("--target", metavar="METRIC", help='What to reach: "val_acc>=0.93", "wer<=25".')
@click.option("--accuracy", type=Finite(), help='Short for --target "accuracy>=...".')
@click.option("--budget", metavar="AMOUNT", help="In the unit of the prices; GPU-hours without.")
@click.option("--gpus", metavar="RANGE", help="a100:1..8, t4:4, 1..8; several with commas.")
@click.option("--batch", metavar="RANGE", help="Batch sizes of all GPUs together, 32..4096.")
@click.option(
    "--per-gpu-batch",
    type=click.IntRange(min=1),
    help="The largest batch one GPU holds; beyond it, accumulate.",
)
@click.option("--memory", metavar="SIZE", help="Of one GPU, 16GB; default: its datasheet's.")
@click.option(
    "--epochs",
    type=Finite(above=0, most=1e9),
    help="Amount of training, where there is no target: work of so many passes at the smallest batch.",
)
@click.option(
    "--stops-at-target", is_flag=True, help="Your script ends by itself once the target is reached."
)
@click.option(
    "--prices", metavar="FILE", help="Per GPU type and hour: YAML, JSON, or CSV with gpu and price."
)
@click.option(
    "--confidence",
    type=Finite(),
    default=0.9,
    show_default=True,
    help="Probability with which the limits are to hold.",
)
@click.option("--minimize", type=click.Choice(["cost", "time"]), help="Default: cost.")
@click.option("--maximize", type=click.Choice(["metric"]), help="The best metric within the limits instead.")
@click.option(
    "--planner",
    default="exact",
    show_default=True,
    help="exact (ours), co-configuration, cynthia, lb-bsp, ...",
)
@click.option("--per-node", type=click.IntRange(min=1), default=8, show_default=True, help="GPUs of a node.")
@click.option("--setup", type=DURATION, help="Before the first step.")
@click.option("--validation", type=DURATION, help="After each pass.")
@click.option("--checkpoint", type=DURATION, help="After each pass.")
@click.option("--lr", type=Finite(above=0), help="Learning rate at the smallest batch size.")
@click.option(
    "--lr-rule",
    type=click.Choice(["linear", "sqrt", "adascale", "none"]),
    help="How it grows with the batch size; default linear.",
)
@click.option(
    "--profile",
    metavar="COMMAND",
    help="Measure by short runs: 'python train.py --bs {batch_size} --epochs {epochs}'.",
)
@click.option(
    "--runs", type=click.IntRange(min=1), default=12, show_default=True, help="At most so many short runs."
)
@click.option(
    "--run-epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Epochs of a short run."
)
@click.option(
    "--reference-epochs",
    type=click.IntRange(min=2),
    help="First a whole run of so many epochs at the smallest batch: the metric's curve.",
)
@click.option(
    "--run-time", type=DURATION, default=600.0, show_default="10m", help="A short run is stopped after this."
)
@click.option("--profile-time", type=DURATION, help="All short runs together take at most this.")
@click.option("--profile-cost", type=Finite(0), help="And cost at most this.")
@click.option("--resume", metavar="FILE", help="Keep what runs have told here, and take it up again.")
@click.option("--html", metavar="FILE", help="Write the plan as a page.")
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else.")
def command(spec: str | None, html: str | None, force: bool, as_json: bool, **given: Any) -> None:
    """The cheapest GPUs and batch size for a deadline and a metric. SPEC: a job's YAML, as for submit.

    \b
    coadapt plan --samples runs.csv --target "val_acc>=0.93" --deadline "tomorrow 9:00" --gpus t4:1..16
    coadapt plan train.yaml --samples runs.csv --deadline 6h --budget 40 --prices prices.yaml
    coadapt plan --profile "python train.py --bs {batch_size} --epochs {epochs}" --epochs 10 --batch 32..512

    EPOCHS, TIME, COST, metric and CHANCE are of one run: the one it tells you to make. Exit code 3: no option holds the limits; which one binds and what would help is said.
    """
    from coadapt.planning import no_answer, plan_page
    from coadapt.report import fresh_file

    planned = _planned(spec, given)
    if html is not None:
        with fresh_file(Path(html), force=force) as part:
            part.write_text(plan_page(planned), encoding="utf-8")
    if as_json:
        terminal.say_rows([planned.to_dict()], as_json=True, single=True)
    else:
        say(planned)
    if planned.plan.chosen is None:
        raise InfeasibleError(no_answer(planned))


def _planned(spec: str | None, given: dict[str, Any]) -> Planned:
    from coadapt.planning import Caps, Request, measure_and_plan, plan_for
    from coadapt.progress import Pulse

    minimize, maximize = given.pop("minimize"), given.pop("maximize")
    if minimize and maximize:
        raise InputError("--minimize and --maximize exclude each other")
    names = (
        "samples",
        "pool",
        "memory",
        "deadline",
        "target",
        "accuracy",
        "budget",
        "gpus",
        "batch",
        "epochs",
        "prices",
        "confidence",
        "planner",
        "lr",
        "lr_rule",
    )
    request = Request(
        spec=spec,
        per_gpu_max=given["per_gpu_batch"],
        gpus_per_node=given["per_node"],
        stops=given["stops_at_target"],
        objective=maximize or minimize or "cost",
        setup_s=given["setup"],
        validation_s=given["validation"],
        checkpoint_s=given["checkpoint"],
        **{name: given[name] for name in names},
    )
    if given["profile"] is None:
        if request.samples is None and request.pool is None:
            raise InputError(
                "where do times come from? give past runs (--samples FILE), past jobs (--pool FILE), or a command to measure (--profile)"
            )
        with Pulse("planning"):
            return plan_for(request)
    caps = Caps(
        runs=given["runs"],
        run_epochs=given["run_epochs"],
        reference_epochs=given["reference_epochs"],
        run_s=given["run_time"],
        total_s=given["profile_time"],
        cost=given["profile_cost"],
    )
    return measure_and_plan(request, given["profile"], caps, given["resume"])


def say(planned: Planned) -> None:
    """All of it but why there is no answer, which is an error's to say."""
    from coadapt.planning import dot_chart, plan_text

    shown, options = plan_text(planned), len(planned.plan.rows)
    terminal.say(shown.question, dim=True)
    terminal.say(shown.headline, bold=True)
    terminal.say()
    terminal.say_table(shown.header, shown.rows)
    if options > len(shown.rows):
        terminal.say(f"  ({len(shown.rows)} of {options} options; --json has all of them)", dim=True)
    terminal.say()
    for line in dot_chart(planned):
        terminal.say(line)
    if shown.advice:
        terminal.say()
    for line in shown.advice:
        terminal.say(line)
    for note in shown.notes:
        progress.note(note)

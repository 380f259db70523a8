"""The entrants of a comparison: policies with their options, checked, and run on every cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coadapt.cli.as_recorded import as_recorded
from coadapt.cli.comparison import Comparison
from coadapt.cli.compose import Case, nothing_to_choose, prepare
from coadapt.cli.parallel import Task, run_all
from coadapt.cli.policy_options import assignments, has_option
from coadapt.cli.progress import Bars
from coadapt.cli.recorded_check import check_recorded
from coadapt.cli.scenario import Scenario
from coadapt.cli.workloads import Trace, load_pool, load_truths, load_workload, only_type
from coadapt.errors import InputError
from coadapt.model import Cluster, format_cluster
from coadapt.policies import Policy
from coadapt.simulate.traces import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A policy in a comparison, by the name users see."""

    name: str
    policy: str | Policy
    texts: Mapping[str, str]
    values: Mapping[str, Any]


def parse_entrants(policies: str, settings: tuple[str, ...]) -> list[Entrant]:
    """The policies of ``fifo,pollux:p=0:patience=0`` with the settings that are theirs."""
    texts = [text.strip() for text in policies.split(",") if text.strip()]
    names = [text.partition(":")[0] for text in texts]
    unused = assignments(settings)
    given = dict(unused)
    found = []
    for text, name in zip(texts, names, strict=True):
        options: dict[str, str] = {}
        for setting, value in given.items():
            owner, dot, option = setting.rpartition(".")
            if owner.replace("_", "-") == name or (not dot and has_option(name, option)):
                options[option] = value
                unused.pop(setting, None)
        options |= assignments(_own_settings(text))
        found.append(Entrant(name=text, policy=name, texts=options, values={}))
    if unused:
        raise InputError(f"none of the policies {', '.join(names)} has an option {next(iter(unused))!r}")
    return found


def _own_settings(text: str) -> list[str]:
    """``patience=3`` and ``quotas=ada:2`` of ``coadapt:patience=3:quotas=ada:2``: what has no "=" goes on with the one before."""
    found: list[str] = []
    for part in text.split(":")[1:]:
        if "=" in part or not found:
            found.append(part)
        else:
            found[-1] += f":{part}"
    return found


def compare_entrants(
    trace: Trace,
    entrants: Sequence[Entrant],
    clusters: Sequence[Cluster],
    scenario: Scenario,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    reference: str | None = None,
    processes: int = 1,
    recorded_check: bool = True,
    bars: Bars | None = None,
    on_ready: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Checks everything, replays the recorded run, tells ``on_ready`` (a comparison without runs), and runs."""
    _check_names(entrants, clusters, seeds, reference)
    pool, truths = load_pool(scenario), load_truths(scenario)
    tasks: list[Task] = []
    workloads: list[Workload] = []
    notes: dict[str, None] = {}
    loaded: dict[str, tuple[Workload, list[str]]] = {}
    for cluster in clusters:
        gpu_type = only_type(cluster)
        if gpu_type not in loaded:
            loaded[gpu_type] = load_workload(trace, scenario, truths, gpu_type)
        workload, read = loaded[gpu_type]
        notes |= dict.fromkeys(read)
        for entrant in entrants:
            name = entrant.name if len(clusters) == 1 else f"{entrant.name} on {format_cluster(cluster)}"
            case = Case(
                name=name,
                policy=entrant.policy,
                cluster=cluster,
                scenario=scenario,
                texts=entrant.texts,
                values=entrant.values,
                seed=first_seed,
            )
            fit, dropped = prepare(case, workload, truths)
            notes |= dict.fromkeys(dropped)
            if not any(known is fit for known in workloads):
                workloads.append(fit)
            index = next(n for n, known in enumerate(workloads) if known is fit)
            for seed in range(first_seed, first_seed + seeds):
                tasks.append(Task(replace(case, seed=seed), index, keep=seed == first_seed))
    first = next(iter(loaded.values()))[0]
    base = next(task.case.name for task in tasks if reference is None or _is(task.case, reference, clusters))
    notes |= dict.fromkeys(nothing_to_choose(first, [task.case for task in tasks]))
    about = Comparison(
        source=first.source,
        outcomes=(),
        reference=base,
        recorded=as_recorded(workloads[0]),
        recorded_check=check_recorded(first, clusters[0], scenario, truths) if recorded_check else None,
        notes=tuple(notes),
    )
    if on_ready is not None:
        on_ready(about)
    outcomes = run_all(
        tasks,
        workloads,
        truths,
        scenario,
        pool=pool,
        processes=processes,
        bars=bars or Bars(quiet=True),
    )
    return replace(about, outcomes=outcomes)


def _is(case: Case, reference: str, clusters: Sequence[Cluster]) -> bool:
    return case.name in (reference, f"{reference} on {format_cluster(clusters[0])}")


def _check_names(
    entrants: Sequence[Entrant], clusters: Sequence[Cluster], seeds: int, reference: str | None
) -> None:
    names = [entrant.name for entrant in entrants]
    if not entrants or not clusters or seeds < 1:
        raise InputError("a comparison needs at least one policy, one cluster and one seed")
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"policy {name!r} is named twice; give each other options, as in pollux,pollux:p=0"
            )
    shorthands = [format_cluster(cluster) for cluster in clusters]
    for shorthand in shorthands:
        if shorthands.count(shorthand) > 1:
            raise InputError(f"cluster {shorthand!r} is named twice")
    if reference is not None and reference not in names:
        raise InputError(f"the reference {reference!r} is not among the policies: {', '.join(names)}")

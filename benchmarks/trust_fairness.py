"""What a shared cluster promises its users, measured: shares, bounds, and what lies gain. Sections of ``benchmarks.trust``.

Virtual time with the real scheduler and the simulator. Sections: ``two`` (two equal users), ``many`` (2, 4 and 8 users, 1 to 40 jobs each,
weights 1:1 and 3:1), ``pollux`` (published workloads 1-4 with 8 users in turn), ``own`` (the same, each job its own user), ``one``
(one user: nothing changes), ``lies``, ``stream`` (20 s jobs of another user), ``gang`` (8 GPUs behind jobs that may not be
preempted), ``backlog`` (48 h of recorded arrivals, 30% of jobs not preemptible). Every run is a cell, computed once. A seed draws arrival times
and lengths. ``--before`` runs the policy without shares and reservations: the column "now" of the issue.

Constants of the policy were chosen on drawn workloads (``generated-101`` to ``-104``), on ``tuned-0.5x-1`` and ``tuned-1.5x-1``, and on seeds below
``FIRST_SEED``. What is printed is from the published workloads 1-4 and from seeds from ``FIRST_SEED`` on, which no constant was chosen on.

Shares of the sections ``two``, ``lies`` and ``stream`` are measured against equal division by weight, which does not depend on the
policy's own notion of a due. ``many``, ``pollux`` and ``own`` use that notion (``shares``), since jobs there cannot use what they would be due otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks import trust_runs
from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.policy import Pair, ratio
from benchmarks.policy_runs import run as policy_run
from benchmarks.published import CORE
from benchmarks.smoke import either, few
from benchmarks.trust_backlog import TRACES, backlog
from benchmarks.trust_world import HOUR, Job, play
from coadapt.model import JobSpec, Resources, Role, parse_cluster
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for

#: Without shares between users, and without reservations.
BEFORE: dict[str, Any] = {"floor": 0.0, "reserve_after": 1e9}
#: The policy as it is served.
SERVED: dict[str, Any] = {}
#: Each job its own user: half of the due is promised. Nothing is balanced, so the policy aims 0.1 above that.
OWN: dict[str, Any] = {"floor": 0.6, "slack_h": 1e9}
#: The first seed that no constant was chosen on.
FIRST_SEED = 100
_SOURCES = (*CORE, "policies/coadapt/*.py")
_SETTING = ("trust_fairness.py", "trust_world.py", "trust_runs.py", "trust_backlog.py")
#: Tasks of hours on one GPU, of which synthetic users have many.
_TASKS = ("yolov3", "deepspeech2", "cifar10")
WORKLOADS = ("tuned-1.0x-1", "tuned-1.0x-2", "tuned-1.0x-3", "tuned-1.0x-4")


def saved(what: str, arguments: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The cell of one run."""
    return cell("trust", {"what": what, **arguments}, source_hash(_SOURCES, setting=_SETTING), compute)


def elastic(name: str, user: str, task: str = "yolov3", **fields: Any) -> JobSpec:
    """A job of a shipped profile."""
    truth = shipped_profiles()[task]
    spec = spec_for(name, truth, task, replicas=1, batch=truth.limits(truth.gpu_types[0]).initial, user=user)
    return msgspec.structs.replace(spec, **fields)


def rigid(name: str, user: str, gpus: int, duration_s: float, **fields: Any) -> JobSpec:
    """A plain script of so many GPUs; by default it can be preempted, and its length is not declared."""
    role = Role(min=gpus, max=gpus, demand=Resources(gpus=1))
    return JobSpec(name=name, user=user, roles=(role,), requested=gpus, duration_s=duration_s, **fields)


# -- two equal users --------------------------------------------------------------------------------------------------


def two_users(seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Share of each of two users with four equal jobs, by who came first, over the hours in which both have enough to run."""

    def compute() -> dict[str, Any]:
        rng = np.random.default_rng((14, seed))
        gap_s = float(rng.uniform(0, 600))
        task, shares = "yolov3", {}
        for first, second in (("alice", "bob"), ("bob", "alice")):
            jobs = [
                Job(at=float(i), name=f"{first}-{i}", spec=elastic(f"{first}-{i}", first, task))
                for i in range(4)
            ]
            jobs += [
                Job(at=gap_s + i, name=f"{second}-{i}", spec=elastic(f"{second}-{i}", second, task))
                for i in range(4)
            ]
            until_s = gap_s + 10 + either(HOUR / 4, 2 * HOUR)
            done = play(jobs, parse_cluster("1x4"), CoadaptPolicy(**options), until_s=until_s)
            shares[f"{first} first"] = done.share("alice", gap_s + 10, until_s)
        return {"shares": shares}

    return saved("two", {"seed": seed, **options}, compute)


def two_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """Least and largest share of either."""
    found = [x for seed in seeds for x in two_users(seed, options)["shares"].values()]
    low, high = min(*found, 1 - max(found)), max(*found, 1 - min(found))
    return [
        Row("two users, 4+4 equal jobs, 4 GPUs: least share", low, 0.42, 0.45, at_least=True),
        Row("  largest share", high, 0.58, 0.55),
    ]


# -- many users -------------------------------------------------------------------------------------------------------


def many_users(seed: int, users: int, heavy: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Worst backlogged hour of any of so many users, with 1 to 40 jobs each, on 16 GPUs."""

    def compute() -> dict[str, Any]:
        rng = np.random.default_rng((15, seed, users, heavy))
        weights = {f"u{n}": 3.0 if heavy and n == 0 else 1.0 for n in range(users)}
        jobs: list[Job] = []
        for user in weights:
            for number in range(int(rng.integers(1, either(3, 41)))):
                task = _TASKS[int(rng.integers(len(_TASKS)))]
                name = f"{user}-{number}"
                jobs.append(Job(at=float(rng.uniform(0, 600)), name=name, spec=elastic(name, user, task)))
        given = {"weights": weights, **options} if heavy else dict(options)
        done = play(
            jobs,
            parse_cluster("4x4"),
            CoadaptPolicy(**given),
            until_s=either(1.2 * HOUR, 4 * HOUR),
            due_of=trust_runs.due_by(weights),
            change_s=30.0,
        )
        return {"worst": done.worst(), "changes": sum(job.changes for job in done.state.jobs.values())}

    return saved("many", {"seed": seed, "users": users, "heavy": heavy, **options}, compute)


def many_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """The worst hour over all seeds, by number of users and weights."""
    rows = []
    for users in few((2, 4, 8)):
        for heavy in few((False, True)):
            found = [many_users(seed, users, heavy, options)["worst"] for seed in seeds]
            what = f"{users} users, weights {'3:1' if heavy else '1:1'}: worst hour over due"
            note = f"median of {len(found)} seeds {np.median(found):.2f}"
            rows.append(Row(what, min(found), 0.75, 0.85, at_least=True, note=note))
    return rows


# -- published workloads ----------------------------------------------------------------------------------------------


def _pairs(ours: Sequence[dict[str, Any]]) -> list[Pair]:
    theirs = [policy_run("pollux", name, fairness=True) for name in few(WORKLOADS)]
    return list(zip(ours, theirs, strict=True))


def pollux_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """Eight users in turn."""
    ours = [trust_runs.run(name, users=8, **options) for name in few(WORKLOADS)]
    value, interval = ratio(_pairs(ours))
    worst = [min(each["worst_hour"].values(), default=1.0) for each in ours]
    return [
        Row(
            "Pollux workloads, 8 users: worst hour over due",
            min(worst),
            0.75,
            0.8,
            at_least=True,
            note=_each(worst),
        ),
        Row("  average JCT over Pollux'", value, 0.92, 0.88, note=interval),
    ]


def own_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """Each job its own user, half of the due promised; finish-time fairness without ncf, whose rho is above 1 under every policy."""
    given = options if options == BEFORE else {**options, **OWN}
    ours = [trust_runs.run(name, users=0, rho=True, **given) for name in few(WORKLOADS)]
    value, interval = ratio(_pairs(ours))
    worst = [min(each["worst_hour"].values(), default=1.0) for each in ours]
    rho = [x for each in ours for job, x in each["rho"].items() if not job.startswith("ncf")] or [1.0]
    unfair = sum(x > 1.1 for x in rho) / len(rho)
    return [
        Row(
            "each job its own user, floor 0.5: worst hour",
            min(worst),
            0.45,
            0.5,
            at_least=True,
            note=_each(worst),
        ),
        Row("  average JCT over Pollux'", value, 0.89, 0.86, note=interval),
        Row("  largest rho, without ncf", max(rho), 1.8, 1.5),
        Row("  share of jobs with rho > 1.1, without ncf", unfair, 0.25, 0.15),
    ]


def one_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """One user: the policy with shares against the policy without, paired."""
    pairs = [
        (trust_runs.run(name, users=1, **SERVED), trust_runs.run(name, users=1, **BEFORE))
        for name in few(WORKLOADS)
    ]
    value, interval = ratio(pairs)
    return [Row("one user: average JCT over that without shares", value, 1.01, 1.0, note=interval)]


def _each(values: Sequence[float]) -> str:
    return "by workload " + ", ".join(f"{x:.2f}" for x in values)


# -- lies -------------------------------------------------------------------------------------------------------------

LIES = (
    "never reports",
    "1/100 of the epochs",
    "false deadline",
    "priority",
    "splits one job into 20",
    "resubmits every 5 min",
)


def _bobs(lie: str, honest: bool, first_at: float) -> list[Job]:
    """Bob's jobs, with the lie or without."""
    if lie == "splits one job into 20":
        whole = elastic("bob", "bob", "yolov3")
        epochs = whole.epochs or 1.0
        if honest:
            return [Job(at=first_at, name="bob", spec=whole)]
        part = [elastic(f"bob-{i}", "bob", "yolov3", epochs=max(epochs / 20, 1.0)) for i in range(20)]
        return [Job(at=first_at, name=spec.name, spec=spec) for spec in part]
    jobs = []
    for number in range(4):
        truth = elastic(f"bob-{number}", "bob")
        told: dict[str, Any] = {}
        job = Job(at=first_at + number, name=truth.name, spec=truth)
        if not honest:
            if lie == "1/100 of the epochs":
                told = {"epochs": (truth.epochs or 1.0) / 100}
            elif lie == "false deadline":
                told = {"epochs": 1.0, "deadline_s": HOUR}
            elif lie == "priority":
                told = {"priority": 1_000_000}
            job = Job(
                at=job.at,
                name=job.name,
                spec=msgspec.structs.replace(truth, **told),
                truth=truth,
                reports=lie != "never reports",
                resubmitted_s=300.0 if lie == "resubmits every 5 min" else None,
            )
        jobs.append(job)
    return jobs


def lie_gain(seed: int, lie: str, options: dict[str, Any]) -> dict[str, Any]:
    """Bob's GPU time with the lie over that without, while alice is honest and both have enough to run."""
    split = lie == "splits one job into 20"
    honest = saved(
        "honest", {"seed": seed, "split": split, **options}, lambda: _bob_had(seed, lie, True, options)
    )

    def compute() -> dict[str, Any]:
        lied = _bob_had(seed, lie, False, options)
        return {"gain": lied["gpu_s"] / max(honest["gpu_s"], 1.0) - 1}

    return saved("lie", {"seed": seed, "lie": lie, **options}, compute)


def _bob_had(seed: int, lie: str, honest: bool, options: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng((16, seed))
    bob_at, alice_at = (float(x) for x in rng.uniform(0, 600, size=2))
    from_s, until_s = 610.0, 610.0 + either(HOUR / 4, 3 * HOUR)
    alice = [Job(at=alice_at + i, name=f"alice-{i}", spec=elastic(f"alice-{i}", "alice")) for i in range(4)]
    if lie == "splits one job into 20":
        alice = [Job(at=alice_at, name="alice", spec=elastic("alice", "alice"))]
    jobs = sorted([*alice, *_bobs(lie, honest, bob_at)], key=lambda job: job.at)
    done = play(jobs, parse_cluster("1x4"), CoadaptPolicy(**options), until_s=until_s)
    return {"gpu_s": done.gpu_s("bob", from_s, until_s)}


def lie_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """Mean gain of each lie, and the largest of any seed beside it."""
    rows = []
    for lie in few(LIES):
        found = [lie_gain(seed, lie, options)["gain"] for seed in seeds]
        note = f"largest of {len(found)} seeds {max(found):.3f}"
        rows.append(Row(f"{lie}: GPU time gained", float(np.mean(found)), 0.05, 0.02, note=note))
    return rows


# -- a stream of short jobs, and a large job behind small ones --------------------------------------------------------


def stream(seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Worst hour of a user with one long job while another submits jobs of 20 s without end."""

    def compute() -> dict[str, Any]:
        rng = np.random.default_rng((17, seed))
        until_s = either(HOUR, 2 * HOUR) + 400
        jobs = [Job(at=0.0, name="long", spec=elastic("long", "ann", roles=(Role(min=1, max=2),)))]
        at, number = 120.0, 0
        while at < until_s:
            spec = rigid(f"short-{number}", "bob", 1, 20.0)
            jobs.append(Job(at=at, name=spec.name, spec=spec))
            at, number = at + float(rng.exponential(5.0)), number + 1
        policy = CoadaptPolicy(**options)
        done = play(jobs, parse_cluster("1x4"), policy, until_s=until_s, change_s=2.0, interval_s=10.0)
        return {"worst": done.worst_hour("ann") or 0.0}

    return saved("stream", {"seed": seed, **options}, compute)


def stream_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """The least over all seeds."""
    found = [stream(seed, options)["worst"] for seed in seeds]
    return [Row("stream of 20 s jobs: the running job's user over due", min(found), 0.8, 0.9, at_least=True)]


def gang(seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """When a job of 8 GPUs on 8 starts under endless jobs of 60 to 180 s that may not be preempted, and when it had to."""

    def compute() -> dict[str, Any]:
        rng = np.random.default_rng((18, seed))
        until_s, longest = either(0.4 * HOUR, 3 * HOUR), 180.0
        bound_s = either(0.2 * HOUR, HOUR)
        jobs = [
            Job(
                at=1800.0 / 2,
                name="large",
                spec=rigid("large", "ann", 8, 600.0, preemptible=False, time_limit_s=700.0),
            )
        ]
        at, number = 0.0, 0
        while at < until_s:
            run_s = float(rng.uniform(60, longest))
            spec = rigid(f"small-{number}", "bob", 1, run_s, preemptible=False, time_limit_s=run_s + 5)
            jobs.append(Job(at=at, name=spec.name, spec=spec))
            at, number = at + float(rng.exponential(13.0)), number + 1
        policy = CoadaptPolicy(**{"least_wait_s": bound_s, **options})
        done = play(jobs, parse_cluster("1x8"), policy, until_s=until_s, change_s=2.0, interval_s=10.0)
        started = done.state.jobs["large"].started_at
        return {
            "waited_s": None if started is None else started - 900.0,
            "bound_s": bound_s + longest + 5 + 30,
        }

    return saved("gang", {"seed": seed, **options}, compute)


def gang_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """How many started in time."""
    found = [gang(seed, options) for seed in seeds]
    good = sum(each["waited_s"] is not None and each["waited_s"] <= each["bound_s"] for each in found)
    waits = [each["waited_s"] for each in found if each["waited_s"] is not None]
    note = f"longest wait {max(waits):.0f} s" if waits else "none started"
    what = f"8 GPUs behind non-preemptible jobs: in time, of {len(found)}"
    return [Row(what, float(good), float(len(found)), at_least=True, note=note)]


def backlog_rows(seeds: Sequence[int], options: dict[str, Any]) -> list[Row]:
    """Recorded arrivals: promises that were broken, and average JCT over that without reservations."""
    rows = []
    for trace in few(TRACES):
        found = [_backlog(trace, seed, options) for seed in seeds]
        none = [_backlog(trace, seed, {**options, "reserve_after": 1e9}) for seed in seeds]
        value, interval = ratio(list(zip(found, none, strict=True)))
        late, promised = sum(each["late"] for each in found), sum(each["promised"] for each in found)
        waits = [max(each["longest_wait_s"] for each in some) / HOUR for some in (found, none)]
        note = f"of {promised} promises; longest wait {waits[0]:.1f} h, without {waits[1]:.1f} h"
        rows.append(
            Row(f"{trace}, 30% not preemptible: later than promised", float(late), 0.0, 0.0, note=note)
        )
        rows.append(Row("  average JCT over that without reservations", value, 1.05, 1.0, note=interval))
    return rows


def _backlog(trace: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    arguments = {"trace": trace, "seed": seed, **options}
    return saved("backlog", arguments, lambda: backlog(trace, seed, options))


SECTIONS: dict[str, Callable[[Sequence[int], dict[str, Any]], list[Row]]] = {
    "two": two_rows,
    "many": many_rows,
    "lies": lie_rows,
    "stream": stream_rows,
    "gang": gang_rows,
    "one": one_rows,
    "backlog": backlog_rows,
    "pollux": pollux_rows,
    "own": own_rows,
}


def section(name: str, seeds: Sequence[int], *, before: bool = False) -> bool:
    """Prints one section; returns whether every must is met."""
    options = BEFORE if before else SERVED
    title = f"trust: {name}{' (without shares and reservations)' if before else ''}"
    return show(title, SECTIONS[name](seeds, options))

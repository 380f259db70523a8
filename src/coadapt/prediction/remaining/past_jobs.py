"""The pool of past jobs: what finished jobs were like, and what that says about one that has not run yet.

A past job keeps its step-time points, its noise scale over progress, its total work and what its changes cost. A
new job is compared with each by weighted features that are known for both:

    likeness = sum w_i s_i / sum w_i     s = 1 same signature or value; exp(-|log ratio|) for amounts

The signature is the name with numbers and hashes taken out: ``bert-lr3e-5-a81f`` and ``bert-lr1e-4-77c0`` are one. Every match says
why it is one. A prior weighs matches by likeness^4, so that one twin outweighs several cousins.

The pool is plain, frozen data and bounded: of jobs that are alike in every feature only the newest are kept, and beyond
the limit the oldest of the largest signature group goes first, so that a nightly job does not push out the yearly one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from coadapt.model import Fact, JobSpec
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.step_time.step_table import StepTimeRow, StepTimeTable

LIMIT = 1000
#: Of one job: more points than these say no more about the next job. Of all past jobs together, for a prior: the same.
_MOST_ROWS, _MOST_NOISE, _MOST_PRIOR_ROWS = 200, 32, 40
_WEIGHTS = {"name": 4.0, "command": 3.0, "parameters": 3.0, "data_size": 2.0, "batch": 1.0, "user": 1.0}
#: Matches below this likeness say nothing; those above it count by its power.
_LEAST_LIKENESS, _POWER = 0.35, 4.0
#: Matches that a prior is made of, at most; of more twins the pool keeps the newest.
_MOST_MATCHES = 25
#: A past job's steps took longer or shorter than the new one's by this factor (its logarithm): it is no twin.
_CONTRADICTED = 0.2
#: Standard deviation of the logarithm between two runs of the same job, where only one was seen.
_LONE = 0.3
#: Shares of progress at which a prior's noise scale is given.
NOISE_SHARES = tuple(i / 10 for i in range(11))
_NUMBER = re.compile(r"[0-9a-f]{6,}|\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.I)


class PastJob(Fact, frozen=True):
    """A finished job. Unknown values are None or empty."""

    name: str
    user: str = ""
    command: tuple[str, ...] = ()
    parameters: float | None = None
    data_size: float | None = None
    batch: float | None = None
    finished_at: float = 0.0
    table: StepTimeTable = StepTimeTable()
    #: (share of its work done, noise scale phi in examples).
    noise: tuple[tuple[float, float], ...] = ()
    total_work: float | None = None
    declared_work: float | None = None
    change_cost_s: float | None = None
    changes: int = 0


class Pool(Fact, frozen=True):
    """Past jobs, oldest first."""

    jobs: tuple[PastJob, ...] = ()
    limit: int = LIMIT


class Match(Fact, frozen=True):
    """A past job that is like the new one, and the features in which it is."""

    job: PastJob
    likeness: float
    why: str


class Prior(Fact, frozen=True):
    """Expectations from past jobs; fields that they do not determine are empty or None."""

    matches: tuple[Match, ...] = ()
    #: Points of the jobs with the best match's signature, merged: for ``step_time.fit``.
    table: StepTimeTable = StepTimeTable()
    #: For ``work.RemainingEvidence``: totals, their likeness, and total / declared.
    past: tuple[float, ...] = ()
    likeness: tuple[float, ...] = ()
    past_ratios: tuple[float, ...] = ()
    #: Noise scale at ``NOISE_SHARES``.
    noise: tuple[Interval, ...] = ()
    change_cost_s: Interval | None = None


NO_PRIOR = Prior()

#: What jobs are compared by: (name, command) without numbers, user, parameters, data size, batch size.
Features: TypeAlias = tuple[str, str, str, float | None, float | None, float | None]


def past_job(spec: JobSpec, *, parameters: float | None = None, **facts: object) -> PastJob:
    """The past job of a specification; ``facts`` are further fields of ``PastJob``."""
    batch = spec.batch.initial if spec.batch is not None else spec.requested_batch
    # floats, as they are when they have been written and read
    job = PastJob(
        name=spec.name,
        user=spec.user,
        command=spec.command,
        parameters=parameters,
        data_size=None if spec.data_size is None else float(spec.data_size),
        batch=None if batch is None else float(batch),
    )
    return replace(job, **facts)


def features(job: PastJob) -> Features:
    """Features by which jobs are compared; jobs with the same features get the same prior."""
    command = signature(" ".join(job.command))
    return signature(job.name), command, job.user, job.parameters, job.data_size, job.batch


@lru_cache(maxsize=8192)
def signature(text: str) -> str:
    """A name without its numbers and hashes: what stays the same from run to run."""
    plain = _NUMBER.sub("#", text.lower())
    return re.sub(r"[\W_]*#[\W_#]*", "#", plain).strip("#-_. ")


def add(pool: Pool, job: PastJob) -> Pool:
    """The pool with ``job`` added; the least useful job is removed if there are too many."""
    rows = sorted(job.table.rows, key=lambda row: -row.count)[:_MOST_ROWS]
    table = StepTimeTable(rows=tuple(row for row in job.table.rows if row in rows)) if rows else job.table
    noise = tuple((s, phi) for s, phi in job.noise if math.isfinite(phi) and phi > 0 and 0 <= s <= 1)
    if len(noise) > _MOST_NOISE:
        kept = np.linspace(0, len(noise) - 1, _MOST_NOISE).round().astype(int).tolist()
        noise = tuple(noise[at] for at in kept)
    jobs = (*pool.jobs, replace(job, table=table, noise=noise))
    mine = features(job)
    twins = [at for at, old in enumerate(jobs) if features(old) == mine]
    if len(twins) > _MOST_MATCHES:
        oldest = min(twins, key=lambda at: jobs[at].finished_at)
        jobs = (*jobs[:oldest], *jobs[oldest + 1 :])
    while len(jobs) > pool.limit:
        jobs = _without_least(jobs)
    return replace(pool, jobs=jobs)


def _without_least(jobs: tuple[PastJob, ...]) -> tuple[PastJob, ...]:
    groups = Counter(signature(job.name) for job in jobs)
    largest = max(groups.values())
    crowded = [at for at, job in enumerate(jobs) if groups[signature(job.name)] == largest]
    oldest = min(crowded, key=lambda at: jobs[at].finished_at)
    return (*jobs[:oldest], *jobs[oldest + 1 :])


def likeness(new: PastJob, old: PastJob) -> tuple[float, str]:
    """Similarity of two jobs, 0 to 1, and its reasons. Features that are unknown for one of them do not count."""
    return _likeness(features(new), features(old))


@lru_cache(maxsize=8192)
def _likeness(new: Features, old: Features) -> tuple[float, str]:
    scores: dict[str, float] = {}
    if new[0] and old[0]:
        scores["name"] = _same_text(new[0], old[0])
    if new[1] and old[1]:
        scores["command"] = _same_text(new[1], old[1])
    if new[2] and old[2]:
        scores["user"] = float(new[2] == old[2])
    for feature, mine, theirs in zip(("parameters", "data_size", "batch"), new[3:], old[3:], strict=True):
        if mine and theirs and mine > 0 and theirs > 0:
            scores[feature] = math.exp(-abs(math.log(mine / theirs)))
    if not scores:
        return 0.0, "no common feature is known"
    total = sum(_WEIGHTS[name] * score for name, score in scores.items())
    why = ", ".join(f"{name.replace('_', ' ')} {score:.0%}" for name, score in scores.items())
    return total / sum(_WEIGHTS[name] for name in scores), why


def _same_text(one: str, other: str) -> float:
    """1 for the same words, else the share of words in common, at most a half."""
    if one == other:
        return 1.0
    words, others = set(re.findall(r"\w+", one)), set(re.findall(r"\w+", other))
    return 0.5 * len(words & others) / len(words | others) if words and others else 0.0


def prior_for(pool: Pool, spec: JobSpec, *, parameters: float | None = None) -> Prior:
    """Expectations of a job that has not run yet, from the pool."""
    new = past_job(spec, parameters=parameters)
    found = []
    for old in pool.jobs:
        score, why = likeness(new, old)
        if score >= _LEAST_LIKENESS:
            found.append(Match(job=old, likeness=score, why=why))
    # the newest of equals: programs change
    found.sort(key=lambda match: (-match.likeness, -match.job.finished_at))
    matches = tuple(found[:_MOST_MATCHES])
    if not matches:
        return Prior()
    ended = [m for m in matches if m.job.total_work and m.job.total_work > 0]
    return Prior(
        matches=matches,
        table=_merged_table(matches),
        past=tuple(m.job.total_work or 0.0 for m in ended),
        likeness=tuple(m.likeness**_POWER for m in ended),
        past_ratios=tuple(
            (m.job.total_work or 0.0) / m.job.declared_work for m in ended if m.job.declared_work
        ),
        noise=_noise(matches),
        change_cost_s=_change_cost(matches),
    )


def _merged_table(matches: tuple[Match, ...]) -> StepTimeTable:
    """Points of the best match and its namesakes; one row per configuration, the newest run's."""
    named = [m for m in matches if m.job.table.rows]
    if not named:
        return StepTimeTable()
    best = signature(named[0].job.name)
    rows: dict[tuple[str, int, int, int], StepTimeRow] = {}
    for match in sorted(named, key=lambda m: m.job.finished_at):
        if signature(match.job.name) == best:
            for row in match.job.table.rows:
                rows[row.gpu_type, row.nodes, row.replicas, row.atomic_batch] = row
    return StepTimeTable(rows=_thinned([rows[key] for key in sorted(rows)]))


def _thinned(rows: list[StepTimeRow]) -> tuple[StepTimeRow, ...]:
    """At most ``most`` rows, spread over places first and over batch sizes second."""
    if len(rows) <= _MOST_PRIOR_ROWS:
        return tuple(rows)
    places: dict[tuple[str, int, int], list[StepTimeRow]] = {}
    for row in rows:
        places.setdefault((row.gpu_type, row.nodes, row.replicas), []).append(row)
    # of each place the smallest, the largest, then the middle batch size: what spans most
    ranked = [(place, _spread(some)) for place, some in places.items()]
    kept: list[StepTimeRow] = []
    for rank in range(max(len(some) for _, some in ranked)):
        layer = [some[rank] for _, some in ranked if rank < len(some)]
        room = _MOST_PRIOR_ROWS - len(kept)
        if len(layer) > room:
            layer = [layer[at] for at in np.linspace(0, len(layer) - 1, room).round().astype(int).tolist()]
        kept += layer
        if len(kept) == _MOST_PRIOR_ROWS:
            break
    return tuple(sorted(kept, key=lambda r: (r.gpu_type, r.nodes, r.replicas, r.atomic_batch)))


def _spread(rows: list[StepTimeRow]) -> list[StepTimeRow]:
    """From the ends to the middle."""
    order = sorted(range(len(rows)), key=lambda at: (min(at, len(rows) - 1 - at), at))
    return [rows[at] for at in order]


#: By identity of a job's table: the table, that of its twins, and both joined.
_joined: dict[int, tuple[StepTimeTable, StepTimeTable, StepTimeTable]] = {}
_KEPT = 16384


def joined(own: StepTimeTable, past: StepTimeTable) -> StepTimeTable:
    """A job's measurements with those of its twins where it has none; without them where they contradict its own."""
    if not own.rows or not past.rows:
        return own if own.rows else past
    # asked at every decision, about tables that stay the same objects while nothing new is measured
    known = _joined.get(id(own))
    if known is None or known[0] is not own or known[1] is not past:
        known = _joined[id(own)] = own, past, _join(own, past)
        while len(_joined) > _KEPT:
            del _joined[next(iter(_joined))]
    return known[2]


def _join(own: StepTimeTable, past: StepTimeTable) -> StepTimeTable:
    gaps = [gap for row in own.rows if (gap := _gap(row, past.rows)) is not None]
    if gaps and abs(float(np.median(gaps))) > _CONTRADICTED:
        return own
    rows = {(r.gpu_type, r.nodes, r.replicas, r.atomic_batch): r for r in (*past.rows, *own.rows)}
    return StepTimeTable(rows=tuple(rows[key] for key in sorted(rows)))


def _gap(row: StepTimeRow, past: tuple[StepTimeRow, ...]) -> float | None:
    """Logarithm of how much longer a step took than past ones in the same place, at its batch size; None: not known."""
    place = (row.gpu_type, row.nodes, row.replicas)
    there = [r for r in past if (r.gpu_type, r.nodes, r.replicas) == place]
    if not there or not there[0].atomic_batch / 2 <= row.atomic_batch <= 2 * there[-1].atomic_batch:
        return None
    batches, times = [math.log(r.atomic_batch) for r in there], [math.log(r.step_s) for r in there]
    return math.log(row.step_s) - float(np.interp(math.log(row.atomic_batch), batches, times))


def _noise(matches: tuple[Match, ...]) -> tuple[Interval, ...]:
    known = [m for m in matches if m.job.noise]
    if not known:
        return ()
    logs = np.array([_noise_logs(m.job.noise) for m in known])
    return tuple(_weighted(logs[:, at], known) for at in range(len(NOISE_SHARES)))


def _noise_logs(noise: tuple[tuple[float, float], ...]) -> FloatArray:
    shares, phis = np.array(sorted(noise)).T
    return np.asarray(np.interp(NOISE_SHARES, shares, np.log(phis)), dtype=np.float64)


def _change_cost(matches: tuple[Match, ...]) -> Interval | None:
    known = [m for m in matches if m.job.change_cost_s and m.job.change_cost_s > 0 and m.job.changes > 0]
    if not known:
        return None
    return _weighted(np.log([m.job.change_cost_s or 1.0 for m in known]), known)


def _weighted(logs: FloatArray, matches: list[Match]) -> Interval:
    """Geometric mean by likeness, with an interval that is never narrower than a lone past job allows."""
    weight = np.array([m.likeness**_POWER for m in matches])
    weight /= weight.sum()
    mean = float(weight @ logs)
    effective = 1 / float(weight @ weight)
    spread = math.sqrt(float(weight @ (logs - mean) ** 2) + _LONE**2 / effective)
    unlike = 1 - max(m.likeness for m in matches)
    half = 1.28 * spread + unlike
    return Interval(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))

"""Shares of users: how many GPUs each is due, and how many the next decision has to give him.

**Due.** The GPUs are divided by weight, water-filled: nobody is due more than his jobs use at a statistical efficiency of at
least ``EFFICIENT``, and what he leaves is divided among the others. GPUs of jobs that may not be preempted count against
their owner. What a user's jobs can use is averaged over a few minutes while he has as many jobs as before.

**Floor.** A user gets ``floor`` of his due. The whole GPUs of it he has always. The fraction he has for a
part of the time: a counter adds up what he was owed and did not get, and asks for one GPU more (or for the least that his
jobs can run on, where that is more) from one side of a band to the other, so that a change lasts. Where a counter does not
come down, the step doubles.

**Balance.** Above the floors the objective decides. A user who was behind his due for long, while others had more than
theirs, gets a higher floor: his whole due once he is ``slack_h`` hours of it behind. So no way to look urgent pays for long.

The account of a user is a row of plain numbers in the policy's memory. It ends when nothing is owed either way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from coadapt.configure import FittedCurve
from coadapt.model import JobSpec
from coadapt.model.snapshot import JobView
from coadapt.policies._base import gpus_needed
from coadapt.policies.coadapt.offers import Offers, is_rigid, work_done

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]
#: Key of the policy's memory: accounts of users as of a moment.
SHARES = "shares"
#: Statistical efficiency down to which GPUs count as used.
EFFICIENT = 0.7
#: What a GPU must add, as a share of the mean of those before it, to count as used.
MARGINAL = 0.2
#: Half width of the band of the counter, in hours of the due; a change lasts at least ``SLICE_S`` seconds.
_BAND_H, SLICE_S = 0.03, 300.0
_HOUR = 3600.0
#: Longest turn of a gang in seconds, and that of a gang which runs on GPUs that others must have: their promise holds by the hour.
LONGEST_S, LENT_S = _HOUR, SLICE_S
#: Bands that a gang is owed before its turn comes first; hours of its floor that a party lends for it.
_LATE, _LENT_H = 2.0, 0.1
#: Hours of the due that a counter goes below zero at most, or as little beyond its band: what a party had above its
#: floor is no credit for long.
_CREDIT_H, _OUTSIDE = 0.03, 1.1
#: A floor from which on a party that is due a GPU has it all the time.
_NEARLY = 0.8
#: Seconds over which the demand of a party is averaged. What is known of the gradients of a job jumps with the size at which
#: they are measured: without it two jobs exchange GPUs at every decision.
STEADY_S = 300.0
#: Accounts below this many GPU-seconds are closed when their user has no jobs.
_CLOSED = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What was owed to a user up to the last decision, and what that decision gave."""

    #: GPU-seconds of the floor that were not given; negative: given beyond it.
    owed: float = 0.0
    #: GPU-seconds behind the due while others had more than theirs; negative: ahead.
    behind: float = 0.0
    due: float = 0.0
    floor: float = 0.0
    gpus: int = 0
    #: GPUs for a part of the time that are being given: of the fraction of the floor, or of a gang; 0: none.
    extra: int = 1
    #: GPUs that the user's jobs use well, averaged over time; and how many jobs these are.
    demand: float = 0.0
    jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a user's jobs could have now."""

    weight: float = 1.0
    #: GPUs of jobs that stay as they are.
    held: int = 0
    #: GPUs that his jobs use well, those held included.
    demand: float = 0.0
    #: Least GPUs that any of his other jobs can run on; 0: he has none.
    least: int = 0
    #: GPUs of a job of his that has waited too long and needs more than he would have; 0: none.
    overdue: int = 0
    #: Rank of his oldest job by submission.
    oldest: int = 0
    #: How many jobs he has.
    jobs: int = 1
    #: Seconds of the whole run, on ``least`` GPUs, of the shortest job that runs on so few.
    run_s: float = 0.0


def party_of(spec: JobSpec, weights: Mapping[str, float]) -> str:
    """Returns the party that a job counts for: its team where that has a weight, else its user."""
    return spec.team if spec.team and spec.team in weights else spec.user


def several_parties(jobs: Iterable[JobView], weights: Mapping[str, float]) -> bool:
    """Whether jobs of more than one party are there."""
    first: str | None = None
    for job in jobs:
        name = party_of(job.spec, weights)
        if first is None:
            first = name
        elif name != first:
            return True
    return False


def beyond_share(
    found: Offers,
    parties: Sequence[str],
    due: Mapping[str, float],
    reserved: Collection[int],
    claimed: Mapping[str, Claim],
    able: Sequence[bool],
) -> dict[int, str]:
    """Returns the waiting jobs, with a note, that may not be preempted and would take more than their party's share.

    Nobody is held to it while no other party waits, and a job with a reservation never is. A job with a reservation does not
    count as waiting either: it starts at its moment, and what would delay it is held back by that. Where all that wait would be
    held, the oldest of a party without such jobs is let go: otherwise they would wait for each other for ever. Jobs that could not
    start whatever is decided (``able``) do not count.
    """
    waits = {
        row for row, job in enumerate(found.jobs) if not job.target and able[row] and row not in reserved
    }
    waiting = {parties[row] for row in waits}
    room = {name: math.ceil(gpus - 1e-6) for name, gpus in due.items()}
    held: dict[int, str] = {}
    for row in sorted(range(len(parties)), key=lambda each: found.jobs[each].order):
        job, name = found.jobs[row], parties[row]
        if job.target or job.spec.preemptible or row in reserved or not waiting - {name}:
            continue
        room[name] -= gpus_needed(job.spec)
        if room[name] < 0:
            room[name] += gpus_needed(job.spec)
            held[row] = (
                "It cannot be preempted, so it may start only within its user's share while other users wait."
            )
    if waits <= held.keys():
        first = next((row for row in held if able[row] and not claimed[parties[row]].held), None)
        held = {row: note for row, note in held.items() if row != first}
    return held


def share_remarks(found: Offers, choice: Ints, books: Books, weights: Mapping[str, float]) -> dict[int, str]:
    """Returns what is to be said about shares, by row: of jobs that wait, that a share gave GPUs to, or with a deadline."""
    remarks: dict[int, str] = {}
    for row, job in enumerate(found.jobs):
        name = party_of(job.spec, weights)
        if job.spec.deadline_s is not None:
            remarks[row] = "Its deadline counts within its user's share only."
        elif name and not choice[row]:
            remarks[row] = _waiting(name, books)
        elif name and 0 < books.gpus(name) <= books.given.get(name, 0):
            remarks[row] = (
                f"The fair share decided: {name} is due {_count(books.due[name])} and gets {_whole(books.gpus(name))}."
            )
    return remarks


def _waiting(name: str, books: Books) -> str:
    """Why a job waits, as far as the share of its party has a part in it."""
    gpus, due = books.gpus(name), books.due[name]
    if gpus >= due - 1e-6:
        return f"{name} has {_whole(gpus)} and is due {_count(due)} while other users have jobs."
    if gpus:
        return f"{name} has {_whole(gpus)} of the {_count(due)} that are due; other jobs of {name} go first."
    return f"{name} is due {_count(due)}, and gets them in turn with other users."


def _whole(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def _count(gpus: float) -> str:
    return "1 GPU" if round(gpus, 1) == 1 else f"{gpus:.3g} GPUs" if gpus >= 1 else f"{gpus:.1g} of a GPU"


def claims(
    found: Offers,
    staying: Sequence[JobView],
    weights: Mapping[str, float],
    quotas: Mapping[str, int],
    overdue: Mapping[str, int],
    now: float,
) -> dict[str, Claim]:
    """Returns the claim of every party with a job, by name.

    Args:
        found: the options of this decision.
        staying: jobs that keep what they have.
        weights: weights of users and teams.
        quotas: most GPUs of users and teams.
        overdue: by party, GPUs of a job that has waited too long.
        now: time of the decision.
    """
    held: dict[str, int] = {}
    for job in staying:
        name = party_of(job.spec, weights)
        held[name] = held.get(name, 0) + job.target_gpus
    useful, least = useful_gpus(found), least_gpus(found)
    demand = {name: float(gpus) for name, gpus in held.items()}
    smallest: dict[str, int] = {}
    oldest: dict[str, int] = {}
    jobs: dict[str, int] = {}
    run_s: dict[str, tuple[int, float]] = {}
    for job in [*staying, *found.jobs]:
        name = party_of(job.spec, weights)
        oldest[name] = min(oldest.get(name, job.order), job.order)
        jobs[name] = jobs.get(name, 0) + 1
    for row, job in enumerate(found.jobs):
        name = party_of(job.spec, weights)
        demand[name] = demand.get(name, 0.0) + float(useful[row])
        if least[row]:
            smallest[name] = min(smallest.get(name, int(least[row])), int(least[row]))
            # what of it is done does not shorten its turn
            done_s = work_done(job, now) / found.least[row]
            whole = (int(least[row]), float(done_s + found.left_s[row]))
            run_s[name] = min(run_s.get(name, whole), whole)
    return {
        name: Claim(
            weight=weights.get(name, 1.0),
            held=held.get(name, 0),
            demand=min(demand[name], float(quotas.get(name, math.inf))),
            least=smallest.get(name, 0),
            overdue=overdue.get(name, 0),
            oldest=oldest[name],
            jobs=jobs[name],
            run_s=run_s.get(name, (0, 0.0))[1],
        )
        for name in sorted(demand)
    }


def least_gpus(found: Offers) -> Ints:
    """Least GPUs that each job can run on now; 0: it cannot run."""
    runs = found.goodput > 0
    beyond = np.iinfo(np.int_).max
    least = np.where(runs, found.size, beyond).min(axis=1)
    return np.asarray(np.where(runs.any(axis=1), least, 0))


def useful_gpus(found: Offers) -> Ints:
    """GPUs that each job uses well: at least the least that it can run on.

    Going up from there, an option counts if each GPU that it adds brings at least ``MARGINAL`` of what those before bring on
    average, and as long as the statistical efficiency is at least ``EFFICIENT``.
    """
    runs, least = found.goodput > 0, least_gpus(found)
    most = _worthwhile(found)
    for row, (job, curve) in enumerate(zip(found.jobs, found.curves, strict=True)):
        if is_rigid(job) or not isinstance(curve, FittedCurve) or most[row] <= least[row]:
            continue
        beyond = _inefficient_from(curve) * job.spec.gpus_per_replica
        if beyond <= most[row]:
            smaller = runs[row] & (found.size < beyond)
            most[row] = max(int(np.where(smaller, found.size, 0).max()), int(least[row]))
    return np.asarray(most)


def _worthwhile(found: Offers) -> Ints:
    """The largest option of each job that adds enough to the ones before it, on the type where that is most."""
    most = np.zeros(len(found.jobs), dtype=np.int_)
    for kind in range(len(found.types)):
        size, speed = np.zeros(len(most)), np.zeros(len(most))
        columns = np.flatnonzero((found.kind == kind) & (found.size > 0))
        for column in columns[np.argsort(found.size[columns], kind="stable")].tolist():
            here, goodput = float(found.size[column]), found.goodput[:, column]
            added = (goodput - speed) / np.maximum(here - size, 1.0)
            enough = (goodput > 0) & (added >= MARGINAL * speed / np.maximum(size, 1.0))
            size, speed = np.where(enough, here, size), np.where(enough, goodput, speed)
        most = np.maximum(most, size.astype(np.int_))
    return most


#: What ``_inefficient_from`` found, and of how many answers: curves change only when their jobs were measured again.
_FOUND: WeakKeyDictionary[FittedCurve, tuple[int, float]] = WeakKeyDictionary()


def _inefficient_from(curve: FittedCurve) -> float:
    """The fewest replicas, of those asked about, at which the best batch size is no longer efficient; inf: none."""
    known = _FOUND.get(curve)
    if known is None or known[0] != len(curve.answers):
        known = _FOUND[curve] = len(curve.answers), _searched(curve)
    return known[1]


def _searched(curve: FittedCurve) -> float:
    fewest = math.inf
    for (gpu_type, *_), answer in curve.answers.items():
        model = curve.model(gpu_type)
        if model is None or answer.examples_per_s is None or answer.batch is None:
            continue
        efficiency = model.efficiency(answer.batch)
        best = (answer.examples_per_s * efficiency).argmax(axis=0)
        wasteful = efficiency[best, np.arange(best.size)] < EFFICIENT
        fewest = min([fewest, *(r for (_, r), (_, column) in answer.places.items() if wasteful[column])])
    return fewest


def dues(parties: Mapping[str, Claim], free: int) -> dict[str, float]:
    """Returns the GPUs that each party is due of those that are ``free`` to be given, water-filled by weight."""
    # level x weight is a party's share of all; what it holds already counts in it
    low, high = 0.0, max((claim.demand / claim.weight for claim in parties.values()), default=0.0)
    if sum(_poured(claim, high) for claim in parties.values()) <= free:
        return {name: _poured(claim, high) for name, claim in parties.items()}
    for _ in range(60):
        level = (low + high) / 2
        if sum(_poured(claim, level) for claim in parties.values()) > free:
            high = level
        else:
            low = level
    return {name: _poured(claim, low) for name, claim in parties.items()}


def _poured(claim: Claim, level: float) -> float:
    return max(min(level * claim.weight, claim.demand) - claim.held, 0.0)


class Books:
    """The accounts of all parties during one decision.

    Args:
        accounts: accounts up to now, by party.
        now: time of the decision.
        slack_h: hours of its due that a party may be behind before it gets all of it.
    """

    def __init__(self, accounts: Mapping[str, Account], now: float, *, slack_h: float) -> None:
        self._before, self._now, self._slack_h = dict(accounts), now, slack_h
        self._after: dict[str, Account] | None = None
        self._kept: Any = None
        self.due: dict[str, float] = {}
        #: GPUs that each party has to have in this decision.
        self.given: dict[str, int] = {}

    @classmethod
    def opened(cls, kept: Mapping[str, Any] | None, now: float, *, slack_h: float) -> Books:
        """Reads the accounts of the last decision from the policy's memory."""
        accounts = {name: _read(row) for name, row in (kept or {}).get("by", {}).items()}
        books = cls(accounts, now, slack_h=slack_h)
        books._kept = kept
        books._since = now if kept is None else float(kept["at"])
        return books

    _since: float = 0.0

    def targets(
        self, parties: Mapping[str, Claim], free: int, *, floor: float, ready: Mapping[str, int]
    ) -> dict[str, int]:
        """Returns the GPUs that each party must have now, of those that are ``free`` to be given.

        Args:
            parties: claims by party.
            free: GPUs that can be given.
            floor: share of the due that a party has at least.
            ready: by party, GPUs of a job whose reserved moment has come.
        """
        seconds = max(self._now - self._since, 0.0)
        before = carried(self._before, seconds, parties, slack_h=self._slack_h)
        parties = steadied(parties, before, seconds)
        self.due = dues(parties, free)
        floor_of = floors(parties, self.due, before, floor=floor, slack_h=self._slack_h)
        steps = _steps(parties, self.due, floor_of, free)
        for name in before.keys() & parties.keys():
            owed, step = before[name].owed, steps[name]
            credit = max(_OUTSIDE * step.band, _CREDIT_H * _HOUR * max(self.due[name], 1.0))
            most = _HOUR * max(self._before[name].due, 1.0)
            if step.gang:
                most = max((_LATE + 1) * step.band, most)
            before[name] = replace(before[name], owed=min(max(owed, -min(credit, most)), most))
        self.given, extra = targets(parties, steps, floor_of, before, free, ready)
        self._after = {name: each for name, each in before.items() if name not in parties}
        for name in parties:
            known = before.get(name, Account())
            self._after[name] = Account(
                owed=known.owed,
                behind=known.behind,
                due=self.due[name],
                floor=floor_of[name],
                gpus=0,
                extra=steps[name].more if extra[name] else 0,
                demand=parties[name].demand,
                jobs=parties[name].jobs,
            )
        return self.given

    def note(self, parties: Sequence[str], gpus: Ints) -> None:
        """Notes what was decided: the GPUs of each job, and whose it is."""
        assert self._after is not None
        total: dict[str, int] = {}
        for name, count in zip(parties, gpus.tolist(), strict=True):
            total[name] = total.get(name, 0) + int(count)
        for name, count in total.items():
            self._after[name] = replace(self._after[name], gpus=self._after[name].gpus + count)

    def gpus(self, party: str) -> int:
        """Returns the GPUs that the party was given in this decision."""
        return 0 if self._after is None else self._after[party].gpus

    def written(self) -> dict[str, Any] | None:
        """Returns the accounts as plain data; None: there are none."""
        if self._after is None:
            # one party is alone: nobody owes anybody anything, and what was owed fades
            left = carried(self._before, max(self._now - self._since, 0.0), (), slack_h=self._slack_h)
            if not left:
                return None
            self._after = left
        rows = {
            name: [
                round(each.owed, 1),
                round(each.behind, 1),
                round(each.due, 3),
                round(each.floor, 3),
                each.gpus,
                int(each.extra),
                # a few seconds move an average by little: what is rounded away would be missing for ever
                round(each.demand, 5),
                each.jobs,
            ]
            for name, each in sorted(self._after.items())
        }
        return {"at": self._now, "by": rows}


def _read(row: Sequence[Any]) -> Account:
    # a row of an earlier version ends after the sixth number
    demand, jobs = row[6:8] if len(row) > 6 else (0.0, 0)
    return Account(
        owed=row[0],
        behind=row[1],
        due=row[2],
        floor=row[3],
        gpus=int(row[4]),
        extra=int(row[5]),
        demand=demand,
        jobs=int(jobs),
    )


def carried(
    accounts: Mapping[str, Account], seconds: float, present: Iterable[str], *, slack_h: float
) -> dict[str, Account]:
    """Returns the accounts after ``seconds`` in which every party had what the last decision gave it.

    What a party had beyond its due counts only as far as others were short of theirs: idle GPUs cost nobody anything.
    Accounts of parties that are not ``present`` fade, and are closed when little is left.
    """
    short = sum(max(each.due - each.gpus, 0.0) for each in accounts.values())
    beyond = sum(max(each.gpus - each.due, 0.0) for each in accounts.values())
    counted = min(short / beyond, 1.0) if beyond > 0 else 0.0
    here, after = set(present), dict[str, Account]()
    for name, each in accounts.items():
        gap = each.due - each.gpus
        most = slack_h * _HOUR * max(each.due, 1.0)
        behind = each.behind + (gap if gap > 0 else counted * gap) * seconds
        owed = each.owed + (each.floor - each.gpus) * seconds
        if name not in here:
            fade = 0.5 ** (seconds / _HOUR)
            owed, behind = 0.0, each.behind * fade
            if abs(behind) < _CLOSED:
                continue
        after[name] = Account(
            owed=owed,
            behind=min(max(behind, -most), most),
            due=each.due if name in here else 0.0,
            floor=each.floor if name in here else 0.0,
            gpus=each.gpus if name in here else 0,
            extra=each.extra,
            demand=each.demand if name in here else 0.0,
            jobs=each.jobs if name in here else 0,
        )
    return after


def steadied(
    parties: Mapping[str, Claim], accounts: Mapping[str, Account], seconds: float
) -> dict[str, Claim]:
    """Returns the claims with demands averaged over the last minutes.

    The demand of a party counts as it is as soon as the number of its jobs changes.
    """
    keep = math.exp(-seconds / STEADY_S)
    found = dict(parties)
    for name, claim in parties.items():
        known = accounts.get(name)
        if known is not None and known.jobs == claim.jobs and known.demand > 0:
            found[name] = replace(claim, demand=keep * known.demand + (1 - keep) * claim.demand)
    return found


def floors(
    parties: Mapping[str, Claim],
    due: Mapping[str, float],
    accounts: Mapping[str, Account],
    *,
    floor: float,
    slack_h: float,
) -> dict[str, float]:
    """Returns the GPUs that each party is to have on average from now on.

    A party whose jobs need more than its floor at once has all that it is due, in turns: the wait for a turn takes from it.
    """
    found = {}
    for name, claim in parties.items():
        behind = accounts[name].behind if name in accounts else 0.0
        most = slack_h * _HOUR * max(due[name], 1e-9)
        rise = min(max(behind / most, 0.0), 1.0) if most > 0 else 0.0
        if claim.least > max(math.floor(floor * due[name] + 1e-6), 1):
            rise = 1.0
        found[name] = due[name] * (floor + (1.0 - floor) * rise)
    return found


class Step(NamedTuple):
    """How the floor of a party is given in whole GPUs."""

    #: GPUs that it always has, and those that it has for a part of the time.
    base: int
    more: int
    #: Half the width of the band of its counter, in GPU-seconds.
    band: float
    #: Whether no job of the party runs on fewer than ``more``, several, GPUs: they are given in turns.
    gang: bool = False
    #: Whether the turn fits beside what the others always have.
    fits: bool = True


def _steps(
    parties: Mapping[str, Claim], due: Mapping[str, float], floor: Mapping[str, float], free: int
) -> dict[str, Step]:
    """Returns the steps of each party.

    The turn of a gang lasts as long as its job runs, within bounds: a stop costs it a start, and another job of its size gains
    nothing from sharing its time.
    """
    plain = {name: _plain(claim, due[name], floor[name]) for name, claim in parties.items()}
    left = free - sum(step.base for step in plain.values())
    found = {}
    for name, (base, more, _, gang, _) in plain.items():
        fits = not gang or more <= left + base
        slice_s = SLICE_S
        if gang:
            slice_s = min(max(parties[name].run_s, SLICE_S), LONGEST_S if fits else LENT_S)
        band = max(_BAND_H * _HOUR * floor[name], (base + more - floor[name]) * slice_s / 2)
        found[name] = Step(base, more, band, gang, fits)
    return found


def _plain(claim: Claim, due: float, share: float) -> Step:
    """The step of a party without its band."""
    base = math.floor(share + 1e-6)
    if not base and share >= _NEARLY and due >= 1 - 1e-6:
        # a whole GPU, nearly always: to stop its only job for the rest would cost more than that
        base = 1
    if claim.overdue > base + 1:
        # his share is saved up for that job
        return Step(0, claim.overdue, 0.0)
    if claim.least > base:
        return Step(0, claim.least, 0.0, gang=claim.least > 1)
    return Step(base, 1, 0.0)


def targets(
    parties: Mapping[str, Claim],
    steps: Mapping[str, Step],
    floor: Mapping[str, float],
    accounts: Mapping[str, Account],
    free: int,
    ready: Mapping[str, int],
) -> tuple[dict[str, int], dict[str, bool]]:
    """Returns the GPUs that each party must have now, and whether that includes the fraction of its floor.

    A party in ``ready`` has a job that starts now: GPUs were reserved for it.

    They never exceed what is ``free`` together. Who is owed most, for what it is due, comes first where not all can have
    the fraction at the same time; whoever has it keeps it until the counter turns. A gang that waits for long comes before
    those that have it.
    """
    step: dict[str, int] = {}
    extra: dict[str, bool] = {}
    late: dict[str, bool] = {}
    urgent: list[tuple[bool, bool, float, float, int, str]] = []
    given: dict[str, int] = {}
    for name, claim in parties.items():
        share, account = floor[name], accounts.get(name, Account())
        base, more, band, gang, _ = steps[name]
        late[name] = gang and account.owed > (1.0 if account.gpus >= more else _LATE) * band
        if name in ready:
            base, more, extra[name] = 0, ready[name], True
            urgent.append((False, False, -math.inf, 0.0, claim.oldest, name))
        elif share - base <= 1e-6 or not claim.least:
            extra[name] = False
        elif abs(account.owed) > band:
            extra[name] = account.owed > 0
        elif gang:
            # a gang that runs has its turn, whoever let it start; another gang of the same party has not
            extra[name] = account.gpus >= more or (account.extra == more and name in accounts)
        else:
            extra[name] = account.extra > 0
        if extra[name] and name not in ready:
            if not gang:
                # sizes that jobs can have leave gaps: ask for more where a counter stays high
                doublings = min(max(math.floor(account.owed / (3 * band)), 0), 6)
                more = min(more << doublings, max(math.ceil(claim.demand) - claim.held - base, more))
            has_it = account.extra > 0 and account.gpus > base
            waits = not has_it and not late[name]
            urgent.append(
                (not late[name], waits, -account.owed / max(share, 1e-9), -share, claim.oldest, name)
            )
        given[name], step[name] = base, more
    left = free - sum(given.values())
    served: set[str] = set()
    for *_, name in sorted(urgent):
        served.add(name)
        if step[name] > left:
            # a gang larger than what is left: the others wait meanwhile, and are owed it
            lenders = [other for other in parties if other != name and given[other]]
            if name not in ready and steps[name].gang:
                lenders = _gang_lenders(name, lenders, steps[name], late[name], served, accounts, floor)
            elif name not in ready:
                lenders = [other for other in lenders if not extra[other]]
            if step[name] > left + sum(given[other] for other in lenders):
                continue
            for other in sorted(lenders, key=lambda each: accounts.get(each, Account()).owed):
                lent = min(given[other], max(step[name] - left, 0))
                given[other] -= lent
                left += lent
        given[name] += step[name]
        left -= step[name]
    return given, extra


def _gang_lenders(
    name: str,
    others: Sequence[str],
    step: Step,
    late: bool,
    served: Collection[str],
    accounts: Mapping[str, Account],
    floor: Mapping[str, float],
) -> list[str]:
    """Who lends GPUs of its own for the turn of a gang.

    For a gang that never fits beside the others, all who were not served yet: its turns are short. For one that does, only
    where it waits for long, and only parties that are owed little: its turns are long.
    """
    open_ = [other for other in others if other not in served]
    if not step.fits:
        return open_
    if not late:
        return []
    runs = accounts.get(name, Account()).gpus >= step.more
    most_s = _LENT_H * _HOUR if runs else 0.0
    return [other for other in open_ if accounts.get(other, Account()).owed <= most_s * floor[other]]

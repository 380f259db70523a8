"""Remaining work of a job: a distribution, blended from all evidence there is.

In order of trust, each source giving way to the next where it is absent or contradicted:

1. **declared**: epochs, passes or steps asked for, minus work done; corrected by the share that the program itself
   reports (total = done / share, trusted the more the larger the share), spread by how far similar past jobs
   ended from what they declared;
2. **course**: the metric's curve towards the target (``learning_curve``), where a target is what ends the job;
3. **pool**: total work of similar past jobs, given that more than ``done`` is needed: P(S | S > done), the
   distribution behind the Gittins index (Tiresias, NSDI 2019);
4. **attained**: nothing but the work done, a: P(left > r) = (a + u) / (a + u + r), the heavy tail found for process
   lifetimes (Harchol-Balter and Downey, 1997): the median remaining work equals the work done. u: a first guess.

The result is a mixture: with n points and m past jobs' worth of likeness the course counts n / (n + 8 (1 + m)), the pool
m / (m + 1) of the rest, attained service the remainder. A course that never reaches the target makes way for past jobs
that did, and never counts in full: a curve cannot foresee when a learning rate will be lowered.
A job with a target *and* a declared end stops at the earlier of both.

``evidence_for`` collects the evidence of a job, ``remaining`` blends it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from coadapt.errors import InputError
from coadapt.model import Fact, JobSpec
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.remaining.learning_curve import Arrival, arrival
from coadapt.prediction.remaining.past_jobs import NO_PRIOR, Prior
from coadapt.spec.target import stored_target

#: Levels of the quantiles that are kept.
LEVELS: tuple[float, ...] = (0.025, *(round(0.05 * i, 2) for i in range(1, 20)), 0.975)
#: Points at which a course is trusted as much as everything else.
_COURSE_POINTS = 8.0
#: Past jobs (alike in all) at which the pool is trusted twice as much as attained service.
_POOL_JOBS = 1.0
#: Relative spread of the declared end where no past job tells: rounding of epochs, a last partial batch.
_DECLARED_SPREAD = 0.002
#: Share of the run at which the program's own report outweighs the declaration.
_TRUSTED_SHARE = 0.05
#: A share below this says nothing yet.
_LEAST_SHARE = 1e-6
#: Past the declared end by more than this share: the declaration was wrong.
_PAST_END = 1.01
_LEVELS = np.array(LEVELS)


class RemainingEvidence(Fact, frozen=True):
    """The evidence on the length of one job; amounts in work (useful examples; seconds for a job without a model)."""

    done: float = 0.0
    #: Total that the user declared: see ``declared_work``.
    declared: float | None = None
    #: Share of the run that the program says is done.
    share: float | None = None
    #: "val_acc>=0.93", where reaching it ends the job.
    target: str | None = None
    #: (work, metric) so far, work rising.
    curve: tuple[tuple[float, float], ...] = ()
    #: Total work of similar past jobs, how alike each is (0 to 1), and total / declared of those that declared one.
    past: tuple[float, ...] = ()
    likeness: tuple[float, ...] = ()
    past_ratios: tuple[float, ...] = ()
    #: What a job of unknown length is taken to need at first.
    unit: float = 1.0


class RemainingWork(Fact, frozen=True):
    """Work left. ``quantiles`` at ``LEVELS``, given that the job ends; ``never``: the chance that it does not."""

    quantiles: tuple[float, ...]
    never: float = 0.0
    #: Share of each kind of evidence in the answer.
    weights: dict[str, float] = {}
    note: str = ""

    def quantile(self, level: float) -> float:
        """Work left is less than this with probability ``level``; infinite where the job may never end."""
        if not 0 <= level <= 1:
            raise InputError(f"a quantile's level is between 0 and 1, not {level}")
        if level > 1 - self.never or self.never == 1:
            return math.inf
        return float(np.interp(level / (1 - self.never), _LEVELS, self.quantiles))

    @property
    def mean(self) -> float:
        """Mean given that the job ends, the outermost 2.5% on each side taken as the quantiles there."""
        inner = float(np.trapezoid(self.quantiles, _LEVELS))
        mean = inner + LEVELS[0] * (self.quantiles[0] + self.quantiles[-1])
        # the least numbers there are vanish when they are multiplied
        return min(max(mean, self.quantiles[0]), self.quantiles[-1])

    @property
    def estimate(self) -> Interval:
        """Median and 80% interval, "never" included: any of them may be infinite."""
        return Interval(value=self.quantile(0.5), low=self.quantile(0.1), high=self.quantile(0.9))

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Random amounts of work left; infinite with probability ``never``."""
        drawn = np.interp(rng.random(count), _LEVELS, self.quantiles)
        return np.where(rng.random(count) < self.never, np.inf, drawn)


def at_levels(amounts: Sequence[RemainingWork], levels: Sequence[float]) -> FloatArray:
    """``RemainingWork.quantile`` of many jobs (rows) at several levels."""
    asked = np.array(levels)
    quantiles = np.array([amount.quantiles for amount in amounts]).reshape(-1, len(LEVELS))
    after = np.clip(np.searchsorted(_LEVELS, asked, side="left"), 1, len(LEVELS) - 1)
    share = np.clip((asked - _LEVELS[after - 1]) / (_LEVELS[after] - _LEVELS[after - 1]), 0.0, 1.0)
    found = quantiles[:, after - 1] * (1 - share) + quantiles[:, after] * share
    for row, amount in enumerate(amounts):
        if amount.never:
            found[row] = [amount.quantile(level) for level in levels]
    return np.asarray(found)


def declared_work(
    *,
    epochs: float | None = None,
    passes: float | None = None,
    steps: float | None = None,
    data_size: float | None = None,
    batch: float | None = None,
    efficiency: float = 1.0,
) -> float | None:
    """The declared amount of a job as work; None if it cannot be computed. The first amount that is given counts.

    Args:
        epochs: Declared epochs of work.
        passes: Declared passes over the data.
        steps: Declared optimizer steps.
        data_size: Examples in one pass.
        batch: Total batch size in use.
        efficiency: Statistical efficiency of that batch size.
    """
    if epochs is not None:
        return epochs * data_size if data_size is not None else None
    if passes is not None:
        return passes * data_size * efficiency if data_size is not None else None
    if steps is not None:
        return steps * batch * efficiency if batch is not None else None
    return None


def declared_left(evidence: RemainingEvidence) -> float:
    """Work left of the declared amount; infinite if none was declared."""
    return math.inf if evidence.declared is None else max(evidence.declared - evidence.done, 0.0)


def remaining(evidence: RemainingEvidence) -> RemainingWork:
    """Distribution of the work left, from all evidence."""
    done = _checked(evidence)
    if _only_declared(evidence) and evidence.declared is not None:
        left = evidence.declared - done
        return RemainingWork(quantiles=tuple([left * by for by in _spreads()]), weights={"declared": 1.0})
    course = None
    if evidence.target is not None:
        target = stored_target(evidence.target)
        if target is not None:
            course = arrival(evidence.curve, target.value, rising=target.higher_is_better)
        if course is not None and course.family == "reached":
            return RemainingWork(
                quantiles=(0.0,) * len(LEVELS), weights={"course": 1.0}, note="target reached"
            )
    limit = _declared(evidence, done)
    if limit is not None and evidence.target is None:
        return RemainingWork(quantiles=_rounded(limit), weights={"declared": 1.0})
    answer = _undeclared(evidence, done, course)
    return answer if limit is None else _earlier(answer, limit)


def _only_declared(evidence: RemainingEvidence) -> bool:
    """True where nothing but the declared end is known: the case of most jobs, asked about at every decision."""
    declared = evidence.declared is not None and evidence.done <= evidence.declared
    return declared and evidence.target is None and evidence.share is None and not evidence.past_ratios


@cache
def _spreads() -> tuple[float, ...]:
    return tuple((1 + _DECLARED_SPREAD * _normal_levels()).tolist())


def _checked(evidence: RemainingEvidence) -> float:
    for name in ("done", "declared", "share", "unit"):
        value = getattr(evidence, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} {value} of a job must be a number, and not negative")
    if evidence.share is not None and evidence.share > 1:
        raise InputError(f"share {evidence.share} of a job done is above 1")
    if evidence.likeness and len(evidence.likeness) != len(evidence.past):
        raise InputError("likeness must have one number for each past job")
    return evidence.done


def _declared(evidence: RemainingEvidence, done: float) -> FloatArray | None:
    """Quantiles of the rest of the declared amount; None if none was declared or it was exceeded by far."""
    totals: list[tuple[float, float]] = []
    share = evidence.share or 0.0
    trust = share / (share + _TRUSTED_SHARE) if done > 0 and share >= _LEAST_SHARE else 0.0
    if trust:
        totals.append((done / share, trust))
    if evidence.declared is not None and (done <= _PAST_END * evidence.declared):
        totals.append((evidence.declared, 1 - trust))
    if not totals:
        return None
    # one number, not a mixture: both speak of the same end
    total = sum(t * w for t, w in totals) / sum(w for _, w in totals)
    gap = (max(t for t, _ in totals) - min(t for t, _ in totals)) * (1 - share)
    spread = math.hypot(_DECLARED_SPREAD * (total - done), 0.5 * gap)
    ends = np.maximum(total + spread * _normal_levels() - done, 0.0)
    ratios = [r for r in evidence.past_ratios if math.isfinite(r) and r > 0 and r * total > done]
    if len(ratios) < 3 or share > 0.5:
        return np.asarray(ends)
    past = np.quantile(np.array(ratios), _LEVELS) * total - done
    return _mixed([(ends, 2.0), (past, float(len(ratios)))])


@cache
def _normal_levels() -> FloatArray:
    from scipy.special import ndtri

    return np.asarray(ndtri(_LEVELS))


def _undeclared(evidence: RemainingEvidence, done: float, course: Arrival | None) -> RemainingWork:
    parts: list[tuple[FloatArray, float]] = []
    weights: dict[str, float] = {}
    left, never, note = 1.0, 0.0, ""
    alike = [(s, w) for s, w in _pairs(evidence) if s > done]
    mass = sum(w for _, w in alike)
    if course is not None:
        share = course.points / (course.points + _COURSE_POINTS * (1 + mass))
        # past jobs that got there know of learning-rate steps that no curve foresees
        share *= 1 - course.never * mass / (mass + _POOL_JOBS)
        never = share * course.never
        weights["course"], left = share, 1 - share
        if course.work:
            quantiles = _weighted(course.work, course.weight) - done
            parts.append((np.maximum(quantiles, 0.0), share * (1 - course.never)))
        if course.never > 0.5:
            note = f"at its present progress it does not reach {evidence.target}"
    if mass > 0:
        share = left * mass / (mass + _POOL_JOBS)
        parts.append((_weighted(*zip(*alike, strict=True)) - done, share))
        weights["pool"], left = share, left - share
    attained = (done + max(evidence.unit, 1e-9)) * (1 / (1 - _LEVELS) - 1)
    parts.append((attained, left))
    weights["attained"] = left
    return RemainingWork(quantiles=_rounded(_mixed(parts)), never=never, weights=weights, note=note)


def _pairs(evidence: RemainingEvidence) -> Iterable[tuple[float, float]]:
    likeness = evidence.likeness or (1.0,) * len(evidence.past)
    return ((s, w) for s, w in zip(evidence.past, likeness, strict=True) if math.isfinite(s) and w > 0)


def _earlier(answer: RemainingWork, limit: FloatArray) -> RemainingWork:
    """The target or the declared end, whichever comes first; a job with a declared end always ends."""
    levels = (np.arange(200) + 0.5) / 200
    target = np.array([answer.quantile(level) for level in levels.tolist()])
    ends = np.minimum(target, float(np.median(limit)))
    quantiles = np.quantile(ends, _LEVELS)
    weights = {**answer.weights, "declared": float(np.mean(target > ends))}
    return RemainingWork(quantiles=_rounded(quantiles), weights=weights, note=answer.note)


def _weighted(values: Sequence[float], weights: Sequence[float]) -> FloatArray:
    """Quantiles of a weighted sample."""
    x, w = np.array(values, dtype=np.float64), np.array(weights, dtype=np.float64)
    order = np.argsort(x)
    middle = np.cumsum(w[order]) - 0.5 * w[order]
    return np.asarray(np.interp(_LEVELS, middle / w.sum(), x[order]), dtype=np.float64)


def _mixed(parts: Sequence[tuple[FloatArray, float]]) -> FloatArray:
    """Quantiles of a mixture whose parts are given by theirs."""
    kept = [(q, w) for q, w in parts if w > 0]
    if len(kept) == 1:
        return kept[0][0]
    values = np.concatenate([q for q, _ in kept])
    # each level stands for the stretch up to the middle between it and its neighbours
    edges = np.concatenate(([0.0], (_LEVELS[1:] + _LEVELS[:-1]) / 2, [1.0]))
    weights = np.concatenate([np.diff(edges) * w for _, w in kept])
    return _weighted(values.tolist(), weights.tolist())


def _rounded(quantiles: FloatArray) -> tuple[float, ...]:
    """Plain numbers, in order whatever rounding did."""
    return tuple(sorted(np.maximum(quantiles, 0.0).tolist()))


#: What a job of unknown length is taken to need at first: seconds, without a model; steps at M0, without a data size.
_FIRST_SECONDS, _FIRST_STEPS = 600.0, 1000


def evidence_for(
    spec: JobSpec,
    *,
    done: float = 0.0,
    course: tuple[tuple[float, float], ...] = (),
    past: Prior = NO_PRIOR,
    told: float | None = None,
) -> RemainingEvidence:
    """Collect the evidence on the length of a job; amounts in work (seconds for a job without a model).

    Args:
        spec: The job's specification, with its declared amount and target.
        done: Work done.
        course: (work, metric) of the target's metric so far.
        past: What similar past jobs let one expect.
        told: Total amount as the running job reports it, where the specification declares none.
    """
    if spec.batch is None:
        declared, unit = spec.duration_s, _FIRST_SECONDS
    else:
        declared = declared_work(epochs=spec.epochs, data_size=spec.data_size)
        unit = float(spec.data_size or _FIRST_STEPS * spec.batch.initial)
    return RemainingEvidence(
        done=done,
        declared=told if declared is None else declared,
        target=spec.target,
        curve=course,
        past=past.past,
        likeness=past.likeness,
        past_ratios=past.past_ratios,
        unit=unit,
    )

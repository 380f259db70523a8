"""The planner's question and its answer: which GPUs and which batch size, for a metric, a deadline and a budget.

    total = set-up + passes x (pass time + validation + checkpoint)      cost = GPUs x total x price

A planner gets a ``Question``, the ``Option``s to choose from and the ``Evidence``, and returns a ``Plan``: what to run, or
why no option is feasible. It reads no file and no clock; randomness comes from the generator it is given.

``largest_batch`` is the largest batch that fits into one GPU, by the memory that runs have used. Memory grows with the
batch of one backward pass: bytes = fixed + slope x batch, neither below 0. From one run alone all of it is taken to grow,
which errs on the safe side for larger batches. Part of the limit is reserved for fragmentation and other libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.prediction.samples.sample_table import EpochTable, MetricTable

#: Share of the memory that is planned with.
_USED = 0.94


class MemorySample(Fact, frozen=True):
    """Peak bytes of one GPU at a number of examples per backward pass."""

    batch: float
    bytes: float


def largest_batch(samples: Sequence[MemorySample], limit_bytes: float) -> int | None:
    """Examples per backward pass that fit into ``limit_bytes``.

    0 if not even one fits; None if memory does not grow with the batch, or nothing is known.
    """
    if not samples:
        return None
    fixed, slope = _line(samples)
    room = _USED * limit_bytes - fixed
    if slope <= 0:
        return None if room >= 0 else 0
    return max(math.floor(room / slope + 1e-9), 0)


def _line(samples: Sequence[MemorySample]) -> tuple[float, float]:
    batch = np.array([sample.batch for sample in samples], dtype=np.float64)
    used = np.array([sample.bytes for sample in samples], dtype=np.float64)
    if len(np.unique(batch)) < 2:
        return 0.0, float((used / batch).max())
    slope = max(float(np.polyfit(batch, used, 1)[0]), 0.0)
    fixed = float((used - slope * batch).mean())
    if fixed < 0:
        return 0.0, float((used * batch).sum() / (batch**2).sum())
    return fixed, slope


Objective = Literal["cost", "time", "metric"]
HOUR_S = 3600.0


class Option(Fact, frozen=True, kw_only=True):
    """One way to run: ``batch`` is that of all replicas together, ``accumulation`` the extra passes of a step."""

    gpu_type: str
    replicas: int
    nodes: int
    batch: int
    accumulation: int = 0
    gpus_per_replica: int = 1

    @property
    def gpus(self) -> int:
        """GPUs held."""
        return self.replicas * self.gpus_per_replica


class Question(Fact, frozen=True, kw_only=True):
    """The limits and the objective of a plan. A limit that is None is absent."""

    objective: Objective = "cost"
    target: float | None = None
    higher_is_better: bool = True
    deadline_s: float | None = None
    #: In the unit of the prices; in GPU-hours where there are none.
    budget: float | None = None
    #: By GPU type, per GPU and hour; empty: cost is in GPU-hours.
    prices: dict[str, float] = {}
    #: Of the prices and the budget: a sign (written before the amount) or a word (behind it).
    currency: str = "$"
    #: What the target's metric is called.
    metric: str = "metric"
    #: Probability with which the limits are to hold together.
    confidence: float = 0.9
    #: Declared amount of training in epochs of work, where there is no target.
    epochs: float | None = None
    setup_s: float = 0.0
    #: By how much the same run takes longer or shorter from time to time (spread of the logarithm), where that was measured.
    run_sd: float = 0.0
    #: Per pass.
    validation_s: float = 0.0
    checkpoint_s: float = 0.0
    #: A run cannot stop in the middle of a pass.
    whole_passes: bool = True
    #: It ends by itself once the target is reached; if not, it makes all passes it is given, and time and cost are of all of them.
    stops: bool = True

    @property
    def cost_unit(self) -> str:
        """Unit of costs."""
        return self.currency if self.prices else "GPU-hours"

    def amount(self, cost: float) -> str:
        """A cost with its unit: $0.69, 12.00 EUR, 0.69 GPU-hours; small ones with two significant digits."""
        number = f"{cost:,.2f}" if cost >= 0.1 or cost == 0 else f"{cost:.2g}"
        return f"{self.cost_unit}{number}" if len(self.cost_unit) == 1 else f"{number} {self.cost_unit}"

    @property
    def goal(self) -> str:
        """The target as written: val_acc>=0.93."""
        return f"{self.metric}{'>=' if self.higher_is_better else '<='}{self.target:g}"

    def price(self, gpu_type: str) -> float:
        """Price of one GPU of a type for an hour."""
        if not self.prices:
            return 1.0
        if gpu_type not in self.prices:
            raise InputError(
                f"no price for {gpu_type!r}; the price file has {', '.join(sorted(self.prices))}; add it, even if it is 0"
            )
        return self.prices[gpu_type]


class Outcome(Fact, frozen=True):
    """The outcome of a run: time until the target was reached, or until its end, and the metric then."""

    total_s: float
    metric: float
    reached: bool


#: Runs an option for real, or as if: for planners that learn by trying.
Trial = Callable[[Option], Outcome]


class Evidence(Fact, frozen=True):
    """Past measurements: pass times by GPU type, metrics by (batch, passes), memory by the batch of one GPU."""

    epochs: dict[str, EpochTable] = {}
    metrics: MetricTable | None = None
    memory: tuple[MemorySample, ...] = ()


class Row(Fact, frozen=True, kw_only=True):
    """One option as the planner sees it; estimates are 80% intervals."""

    option: Option
    #: Those that time, cost and metric are of, and as many as suffice with the confidence asked for: the same where a run does not stop by itself.
    passes: float
    passes_enough: float
    total_s: Interval
    cost: Interval
    #: None where nothing is known of the metric.
    metric: Interval | None
    #: Probability that all limits hold.
    chance: float
    why: str
    #: Passes after which the target is expected; None where there is none.
    passes_expected: float | None = None


class Relaxation(Fact, frozen=True):
    """A limit and its nearest value under which some option would be feasible, all other limits unchanged."""

    limit: Literal["deadline", "target", "budget", "deadline and budget", "gpus", "confidence"]
    value: float
    text: str


class ShortRun(Fact, frozen=True, kw_only=True):
    """A run of some minutes that pays before the launch, because the speed of its row is not known."""

    row: int
    #: Share of the chosen row's cost (or time) that it saves in the mean; None where no row was chosen.
    saves: float | None
    #: Probability that the row then is the choice.
    likely: float


class Plan(Fact, frozen=True, kw_only=True):
    """The answer. ``chosen`` is the index of a row, None if no option is feasible; then ``likeliest`` is the nearest one."""

    planner: str
    question: Question
    rows: tuple[Row, ...]
    chosen: int | None
    likeliest: int
    #: Indices of rows that no other row beats in time, cost and metric, by time.
    frontier: tuple[int, ...]
    #: Which limits forbid every option, and what would help; empty where there is an answer.
    binding: tuple[str, ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    short_run: ShortRun | None = None

    @property
    def row(self) -> Row:
        """The chosen row, or the likeliest one."""
        return self.rows[self.likeliest if self.chosen is None else self.chosen]


class Planner(Protocol):
    """Interface of planners, called by ``coadapt plan`` and by the benchmark.

    The same question and seed give the same answer. ``plan`` raises ``InputError`` for a question that contradicts itself or
    for evidence that does not suffice, never for a question whose answer is no. It takes

    - ``question``: the limits and the objective;
    - ``options``: the options to choose from, not empty; the plan has one row for each, in order;
    - ``evidence``: past measurements;
    - ``rng``: the source of randomness;
    - ``trial``: runs an option and returns its outcome; None: nothing can be run.
    """

    name: str

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan: ...


def check(question: Question, options: Sequence[Option]) -> None:
    """Raise an InputError for a question or options that are not valid."""
    if not options:
        raise InputError("there are no options: no GPU count fits any batch size")
    if not 0.5 <= question.confidence < 1:
        raise InputError(f"confidence {question.confidence:g} must be at least 0.5 and below 1")
    for name, value in (("deadline", question.deadline_s), ("budget", question.budget)):
        if value is not None and not (np.isfinite(value) and value > 0):
            raise InputError(f"{name} {value:g} must be a positive number")
    if question.target is not None and not np.isfinite(question.target):
        raise InputError(f"target {question.target:g} must be a number")
    if question.objective == "metric" and question.deadline_s is None and question.budget is None:
        raise InputError(
            "maximising the metric needs a deadline or a budget: without either, more passes are always better"
        )
    if question.objective != "metric" and question.target is None and question.epochs is None:
        raise InputError("the amount of training is unknown: give a target, or the number of epochs")
    if question.deadline_s is not None and question.deadline_s <= question.setup_s:
        raise InputError(
            f"the deadline ({question.deadline_s:g} s) is shorter than the set-up ({question.setup_s:g} s)"
        )
    for gpu_type in {option.gpu_type for option in options}:
        question.price(gpu_type)

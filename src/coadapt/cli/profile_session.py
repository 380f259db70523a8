"""The runs of one ``--profile``: each where it tells most, until enough is known or a cap is met.

A run is the user's command with an option filled in (``profile_command``). An option that fails is left out with its last lines said, after "out of memory" with all that hold as much; the first one failing is the command's fault, and the end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from coadapt.cli import show
from coadapt.cli.plan_answer import forecast_of
from coadapt.cli.plan_ask import Asked
from coadapt.cli.plan_request import Request
from coadapt.cli.profile_command import filled_command, rate_of
from coadapt.cli.profile_reports import compiled
from coadapt.cli.profile_runs import RunFailedError, run_once
from coadapt.cli.profile_told import evidence_of, failed_of, load, ran_of, save, work_of
from coadapt.cli.progress import Bars
from coadapt.configure.problem import HOUR_S, Evidence, Option
from coadapt.configure.profiling import next_run
from coadapt.configure.scattered import scatter_of
from coadapt.errors import InputError


@dataclass(frozen=True)
class Caps:
    """How much may be spent on measuring."""

    runs: int = 12
    run_epochs: int = 1
    reference_epochs: int | None = None
    run_s: float = 600.0
    total_s: float | None = None
    cost: float | None = None


class Session:
    """All runs of one command."""

    def __init__(self, request: Request, asked: Asked, template: str, caps: Caps, kept: Path | None) -> None:
        self._request, self._asked, self._template, self._caps, self._kept = (
            request,
            asked,
            template,
            caps,
            kept,
        )
        self._options = list(asked.options)
        patterns = request.read_spec().get("metrics") or {}
        if not isinstance(patterns, dict):
            raise InputError(f"{request.spec}: metrics must be a mapping of names to regular expressions")
        self._patterns = compiled(patterns)
        known = load(kept) if kept is not None else []
        self.ran = [each for each in known if each.failed is None]
        self._failures = [each for each in known if each.failed is not None]
        self._failed: set[Option] = set()
        #: Examples of one backward pass on one GPU that were too many for its memory.
        self._too_many = float("inf")
        for option in self._options:
            for each in self._failures:
                if each.of(option) and each.accumulation == option.accumulation:
                    self._leave_out(
                        option,
                        str(each.failed),
                        f"failed before; another file than {kept} for --resume tries it again",
                    )

    def measure(self) -> None:
        """Runs until enough is known, or a cap is met."""
        reference = min(self._options, key=lambda option: (option.batch, option.gpus))
        began = time.monotonic()
        with Bars() as bars:
            if self._caps.reference_epochs and not any(each.reference for each in self.ran):
                self._run(reference, self._caps.reference_epochs, self._caps.run_s * 10, reference=True)
            while len([each for each in self.ran if not each.reference]) < self._caps.runs:
                if self._capped(time.monotonic() - began):
                    break
                option = self._next()
                if option is None or len(self._failed) > self._caps.runs:
                    break
                try:
                    self._run(option, self._caps.run_epochs, self._caps.run_s)
                except RunFailedError as error:
                    if not self.ran:
                        raise
                    self._leave_out(option, str(error), f"{error}; left out")
                    self._failures.append(failed_of(option, str(error)))
                    save(self._kept, [*self.ran, *self._failures])
                    continue
                said = f"batch {option.batch} on {option.gpus}: {self.ran[-1].pass_s:.3g} s a pass"
                bars.update(said, len(self.ran), self._caps.runs)

    def evidence(self) -> Evidence:
        """All that is known now."""
        return evidence_of(
            self._asked.evidence,
            self.ran,
            gpus_per_node=self._request.gpus_per_node,
            higher_is_better=self._asked.question.higher_is_better,
        )

    def possible(self, options: Sequence[Option]) -> list[Option]:
        """Options without those that failed; at least one."""
        found = self.left(options)
        if not found:
            raise InputError("no option is left: the command failed with all of them")
        return found

    def left(self, options: Sequence[Option]) -> list[Option]:
        """Options without those that failed."""
        return [o for o in options if o not in self._failed and _local(o) < self._too_many]

    def _next(self) -> Option | None:
        options = self.possible(self._options)
        done = {i for i, option in enumerate(options) if any(each.of(option) for each in self.ran)}
        evidence = self.evidence() if self.ran else None
        forecast = None
        if evidence is not None and evidence.epochs:
            scatter = scatter_of((each.batch, each.metrics) for each in self.ran)
            known = replace(self._asked, evidence=evidence, work=work_of(evidence, self.ran), scatter=scatter)
            forecast = forecast_of(known)
        question = self._asked.question
        if question.target is not None and (evidence is None or evidence.metrics is None):
            question = msgspec.structs.replace(question, target=None, epochs=question.epochs or 1.0)
        i = next_run(question, options, forecast, done)
        return None if i is None else options[i]

    def _capped(self, elapsed_s: float) -> bool:
        paid = sum(
            each.seconds * each.workers * self._asked.question.price(each.gpu_type) / HOUR_S
            for each in self.ran
        )
        caps = self._caps
        late = caps.total_s is not None and elapsed_s >= caps.total_s
        if not late and (caps.cost is None or paid < caps.cost):
            return False
        spent = show.duration(sum(each.seconds for each in self.ran))
        show.note(f"stopped measuring at the cap: {spent}, {self._asked.question.amount(paid)}")
        return True

    def _leave_out(self, option: Option, error: str, said: str) -> None:
        self._failed.add(option)
        if "out of memory" in error.lower():
            self._too_many = min(self._too_many, _local(option))
        show.note(f"batch {option.batch} on {option.gpus}: {said}")

    def _run(self, option: Option, epochs: int, limit_s: float, *, reference: bool = False) -> None:
        question = self._asked.question
        command = filled_command(
            self._template,
            option,
            epochs=epochs,
            lr=rate_of(self._request, self._asked.spec, option, min(each.batch for each in self._options)),
            # of its own: the run that is planned for will have another, too
            seed=self._request.seed + len(self.ran),
        )
        metric = question.metric if question.target is not None or self.aimed else None
        result = run_once(
            command.line, command.environment, metric=metric, limit_s=limit_s, patterns=self._patterns
        )
        self.ran.append(ran_of(option, result, reference=reference))
        save(self._kept, [*self.ran, *self._failures])

    @property
    def aimed(self) -> bool:
        """Whether there is a target, also one that was dropped for want of a metric: the runs may tell it."""
        return bool(
            self._request.target or self._request.accuracy is not None or self._asked.spec.get("target")
        )


def _local(option: Option) -> float:
    return option.batch / option.replicas / (option.accumulation + 1)

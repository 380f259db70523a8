"""Which batch size the job has from here on: the first replica decides by the rule, all others are told, it is written down."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from coadapt.model import Batch, Measurement
from coadapt.predict import step_time
from coadapt.predict.step_table import EMPTY_TABLE, StepTimeTable
from coadapt.torch.batches import BatchRule, Chosen, Situation
from coadapt.torch.history import Entry
from coadapt.torch.memory import MemoryLimit
from coadapt.torch.steps import OFTEN, Split, spread
from coadapt.torch.training import Training

log = logging.getLogger(__name__)


class Adaptation:
    """Asked at the start of every epoch, after a resize, and when a memory limit was met."""

    def __init__(self, training: Training, rule: BatchRule, memory: MemoryLimit) -> None:
        self.training, self.rule, self.memory = training, rule, memory
        self.table: StepTimeTable = EMPTY_TABLE

    def observe(self, measurements: Sequence[Measurement]) -> None:
        """Takes what was measured since the last time into the table."""
        for measurement in measurements:
            self.table = step_time.observe(self.table, measurement)

    def choose(self, metrics: Mapping[str, float], rate: float) -> bool:
        """Decides, and applies what is new; True if something is."""
        training = self.training
        if training.history.replays:
            return self.replay()
        chosen = self._decide(metrics, rate) if training.group.place.first else None
        chosen = Chosen(*training.group.from_first(tuple(chosen) if chosen else None))
        return self._apply(chosen)

    def replay(self) -> bool:
        """What the run that is repeated had at this step."""
        training = self.training
        entry = training.history.recorded(training.ledger.step)
        now = training.history.now
        if (
            now is not None
            and msgspec.structs.replace(now, step=entry.step, replicas=entry.replicas) == entry
        ):
            return False
        speeds = entry.speeds if len(entry.speeds) == training.group.place.replicas else ()
        chosen = Chosen(entry.batch, entry.atomic, speeds, entry.why)
        return self._apply(chosen, replayed=entry)

    def _decide(self, metrics: Mapping[str, float], rate: float) -> Chosen:
        training, place = self.training, self.training.group.place
        now = training.history.now
        situation = Situation(
            limits=self._limits(),
            nodes=place.nodes,
            replicas=place.replicas,
            gpu_type=training.gpu_type,
            batch=now.batch if now else 0,
            atomic=now.atomic if now else 0,
            accumulation=training.split.accumulation,
            grad=training.noise.grad,
            table=self.table,
            epoch=training.ledger.work / training.length,
            example_s=training.samples.example_s,
            metrics=metrics,
            rate=rate,
            twice=now.twice if now else 0,
            noise_budget=training.sampling.budget,
            sample_s=training.sampling.times()[0],
            samples=training.noise.samples,
            length=training.length,
        )
        chosen, every = self.rule.choose(situation), training.sampling.every
        return chosen._replace(twice=every) if chosen.twice and every else chosen

    def _limits(self) -> Batch:
        """As asked for, within the memory that was found to be there."""
        limits = self.training.limits
        assert limits is not None
        if self.memory.atomic is None or self.memory.atomic >= limits.per_gpu_max:
            return limits
        most = self.memory.atomic
        return msgspec.structs.replace(limits, per_gpu_max=most, per_gpu_min=min(limits.per_gpu_min, most))

    def _apply(self, chosen: Chosen, replayed: Entry | None = None) -> bool:
        training, replicas = self.training, self.training.group.place.replicas
        batch = max(chosen.batch, 1)
        atomic = max(min(chosen.atomic, self._limits().per_gpu_max), 1)
        shares = spread(batch, chosen.speeds or [1.0] * replicas)
        assert training.limits is not None
        if replayed is not None:  # the same steps, on however many replicas
            twice, double = replayed.twice, replayed.double
        else:
            # several replicas, or several passes in every step, tell the noise as they are
            useful = replicas == 1 and batch <= atomic and not training.sampling.off
            twice = max(chosen.twice, OFTEN) if chosen.twice and useful else 0
            double = min(2 * batch, max(training.limits.max, batch)) if twice else 0
        split, now = Split(shares, atomic, twice, double), training.history.now
        new = Entry(
            step=training.ledger.step,
            replicas=replicas,
            batch=batch,
            atomic=atomic,
            twice=twice,
            double=double,
            speeds=chosen.speeds,
            grad=training.noise.grad if replayed is None else replayed.grad,
            why=chosen.why,
        )
        changed = split != training.split or now is None or now.replicas != replicas
        if changed or replayed is not None or new.grad != (now.grad if now else None):
            training.history.add(new)
        if not changed:
            return False
        training.split = split
        training.watch.restart()
        if training.group.place.first:
            before = "" if now is None else f" (was {now.batch} on {now.replicas})"
            log.info(
                "step %d: batch %d on %d replica%s, at most %d in a pass%s: %s",
                training.ledger.step,
                batch,
                replicas,
                "s" * (replicas != 1),
                atomic,
                before,
                chosen.why,
            )
        return True

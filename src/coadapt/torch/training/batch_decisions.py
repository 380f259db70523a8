"""Decisions on the batch size: the first replica decides by the batch rule, the others adopt it, the history records it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from coadapt.model import Batch, Measurement
from coadapt.prediction.step_time import step_table
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable
from coadapt.torch.batches._base import BatchRule, Chosen, Situation
from coadapt.torch.training.decision_history import Decision
from coadapt.torch.training.replica_training import ReplicaTraining
from coadapt.torch.training.step_plan import OFTEN, Split, spread

log = logging.getLogger(__name__)


class BatchDecisions:
    """Owns the batch rule and the table of step times. Called at the start of every epoch, after a resize, and after a memory limit."""

    def __init__(self, training: ReplicaTraining, rule: BatchRule) -> None:
        self.training, self.rule = training, rule
        self.table: StepTimeTable = EMPTY_TABLE

    def observe(self, measurements: Sequence[Measurement]) -> None:
        """Add measurements to the table of step times."""
        for measurement in measurements:
            self.table = step_table.observe(self.table, measurement)

    def choose(self, metrics: Mapping[str, float], rate: float) -> bool:
        """Decide by the rule and apply the decision; True if it changed something.

        ``metrics`` are the last ones that the script reported, ``rate`` is its learning rate.
        """
        training = self.training
        if training.history.replays:
            return self.replay()
        chosen = self._decide(metrics, rate) if training.group.place.first else None
        chosen = Chosen(*training.group.from_first(tuple(chosen) if chosen else None))
        return self._apply(chosen)

    def replay(self) -> bool:
        """Apply the decision of the replayed run at this step; True if it changed something."""
        training = self.training
        recorded = training.history.recorded(training.ledger.step)
        now = training.history.now
        if (
            now is not None
            and msgspec.structs.replace(now, step=recorded.step, replicas=recorded.replicas) == recorded
        ):
            return False
        speeds = recorded.speeds if len(recorded.speeds) == training.group.place.replicas else ()
        chosen = Chosen(recorded.batch, recorded.atomic, speeds, recorded.why)
        return self._apply(chosen, replayed=recorded)

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
        """The script's limits, lowered to the memory limit."""
        limits, most = self.training.limits, self.training.memory.atomic
        assert limits is not None
        if most is None or most >= limits.per_gpu_max:
            return limits
        return msgspec.structs.replace(limits, per_gpu_max=most, per_gpu_min=min(limits.per_gpu_min, most))

    def _apply(self, chosen: Chosen, replayed: Decision | None = None) -> bool:
        training, replicas = self.training, self.training.group.place.replicas
        batch = max(chosen.batch, 1)
        atomic = max(min(chosen.atomic, self._limits().per_gpu_max), 1)
        shares = spread(batch, chosen.speeds or [1.0] * replicas)
        assert training.limits is not None
        if replayed is not None:  # the same steps on any number of replicas
            twice, double = replayed.twice, replayed.double
        else:
            # several replicas, or several passes in every step, show the noise without larger steps
            useful = replicas == 1 and batch <= atomic and not training.sampling.off
            twice = max(chosen.twice, OFTEN) if chosen.twice and useful else 0
            double = min(2 * batch, max(training.limits.max, batch)) if twice else 0
        split, now = Split(shares, atomic, twice, double), training.history.now
        new = Decision(
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
        training.change_split(split)
        if training.group.place.first:
            before = "" if now is None else f" (was {now.batch} on {now.replicas})"
            log.info(
                "step %d: batch size %d on %d replica%s, at most %d examples in a pass%s: %s",
                training.ledger.step,
                batch,
                replicas,
                "s" * (replicas != 1),
                atomic,
                before,
                chosen.why,
            )
        return True

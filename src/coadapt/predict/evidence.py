"""What is known about a job's length, put together for ``remaining``."""

from __future__ import annotations

from coadapt.model import JobSpec
from coadapt.predict.history import NO_PRIOR, Prior
from coadapt.predict.remaining import RemainingEvidence, declared_work

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
    """Declared amount, work done, the metric's course and past jobs; amounts in work (seconds without a model).

    ``told``: the whole amount by the running job's own word, for one whose specification does not declare it.
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

"""Measurements that an agent reports: aggregates per configuration, never fitted parameters; and their plausibility
checks.
"""

from __future__ import annotations

import msgspec

from coadapt.errors import InputError
from coadapt.model._base import Fact

#: What a line of standard output that holds a measurement begins with; JSON follows.
PREFIX = "COADAPT "
_MOST_COUNT, _MOST_S, _MOST_WORK, _MOST_NAMES, _MOST_TEXT = 1 << 31, 1e7, 1e15, 64, 100
#: Products of counts stay below: up to here a float holds every whole number.
MOST_PRODUCT = 1 << 53
#: Shortest step in seconds; squared norms and variances of gradients. A 0 says that there is none.
LEAST_STEP_S, LEAST_GRADIENT, MOST_GRADIENT = 1e-6, 1e-15, 1e15
#: Least share of the work that is done, if not none.
LEAST_SHARE = 1e-9
#: Gradients, and their ratio, that a log of an older version may hold without harm.
_LEAST_OLD, _MOST_OLD = 1e-30, 1e30


class Configuration(Fact, frozen=True):
    """One way of running a step: on what, how many, how large."""

    nodes: int
    replicas: int
    atomic_batch: int  # examples per GPU and backward pass
    accumulation: int = 0  # extra backward passes before the update
    gpu_type: str = "gpu"
    servers: int = 0

    @property
    def batch(self) -> int:
        """Total batch size M."""
        return self.replicas * self.atomic_batch * (self.accumulation + 1)


class Measurement(Fact, frozen=True):
    """Steps of one configuration since the last report, and where training stands.

    ``step_s`` is one optimizer step without accumulation, ``sync_s`` its share spent on
    synchronisation after the backward pass; both are means over ``count`` steps with variances.
    """

    config: Configuration
    count: int = 1
    step_s: float = 0.0
    step_var: float = 0.0
    sync_s: float = 0.0
    sync_var: float = 0.0
    #: Gradient statistics at the reference batch size M0: noise scale phi = M0 * grad_var / grad_sqr.
    grad_sqr: float | None = None
    grad_var: float | None = None
    #: Work done so far, in examples; None where the job does not tell.
    work: float | None = None
    epoch: float | None = None
    #: Share of its work that is done, as the job itself reports; None if it does not.
    share: float | None = None
    metrics: dict[str, float] = {}
    #: Time that is not steps, since the last report: seconds of one occurrence (their mean, if several) by kind:
    #: "setup", "first_pass" (what reading the data cost over a later pass), "validation", "checkpoint", or the job's own.
    overheads_s: dict[str, float] = {}
    version: int = 1


class ReportLimits(Fact, frozen=True):
    """What the receiver of a report knows about the job and the cluster; None: not known.

    ``data_size`` is the number of examples in the data set, ``gpus`` the number of GPUs in the cluster (for a job that
    uses GPUs).
    """

    data_size: int | None = None
    gpus: int | None = None


def check_measurement(m: Measurement, limits: ReportLimits | None = None) -> None:
    """Raises InputError for the first implausible figure of a report, whatever its source.

    Reports are folded into the state permanently: a job may report wrong figures about itself, but they must not
    break the controller or other jobs.
    """
    _check_configuration(m.config, limits or ReportLimits())
    # 0: no step since the last report, which tells a set-up or a decision all the same
    _within("count", m.count, 0, _MOST_COUNT)
    for name in ("step_s", "sync_s"):
        _within(name, getattr(m, name), 0, _MOST_S)
    _none_or_within("step_s", m.step_s, LEAST_STEP_S, _MOST_S)
    if m.count * m.config.batch >= MOST_PRODUCT:
        raise InputError(f"count times the batch size is {m.count * m.config.batch}; it must be below 2^53")
    for name in ("step_var", "sync_var"):
        _within(name, getattr(m, name), 0, _MOST_S**2)
    if m.sync_s > m.step_s:
        raise InputError(f"sync_s {m.sync_s:g} is a part of step_s {m.step_s:g} and cannot be more")
    if (m.grad_sqr is None) != (m.grad_var is None):
        raise InputError("grad_sqr and grad_var come together")
    # squared norms and variances; agents clamp what their estimators make of noise
    for name in ("grad_sqr", "grad_var"):
        if (value := getattr(m, name)) is not None:
            _none_or_within(name, value, LEAST_GRADIENT, MOST_GRADIENT)
    for name, most in (("work", _MOST_WORK), ("epoch", 1e9), ("share", 1.0)):
        if (value := getattr(m, name)) is not None:
            _within(name, value, 0, most)
    if m.share is not None:
        # what was done, over it, is the whole
        _none_or_within("share", m.share, LEAST_SHARE, 1.0)
    for what, figures in (("metrics", m.metrics), ("overheads_s", m.overheads_s)):
        if len(figures) > _MOST_NAMES or any(
            len(name) > _MOST_TEXT or not name.isprintable() for name in figures
        ):
            raise InputError(
                f"{what} has more than {_MOST_NAMES} entries, or a name that is not printable or too long"
            )
        for name, value in figures.items():
            least, most = (-1e30, 1e30) if what == "metrics" else (0, _MOST_S)
            _within(name, value, least, most)


def accepted_part(m: Measurement) -> Measurement | None:
    """Returns the part of a recorded measurement that can be folded: the measurement itself, if it was checked.

    A log that was written before a bound existed may hold any value. A step time or gradient that would overflow is
    left out; None: the whole measurement is ignored, because its batch size would overflow.
    """
    config = m.config
    counts = 1 <= config.nodes <= _MOST_COUNT and config.replicas >= 1 and config.atomic_batch >= 1
    if not counts or not (0 <= config.servers <= _MOST_COUNT and config.accumulation >= 0):
        return None
    if config.batch >= MOST_PRODUCT or not 0 <= m.count <= _MOST_COUNT:
        return None
    if m.work is not None and not 0 <= m.work <= _MOST_WORK:
        m = msgspec.structs.replace(m, work=None)
    if not all(0 <= seconds <= _MOST_S for seconds in m.overheads_s.values()):
        m = msgspec.structs.replace(m, overheads_s={})
    if m.share and not LEAST_SHARE <= m.share <= 1.0:
        m = msgspec.structs.replace(m, share=None)
    if m.step_s and not LEAST_STEP_S <= m.step_s <= _MOST_S:
        m = msgspec.structs.replace(m, step_s=0.0, sync_s=0.0, step_var=0.0, sync_var=0.0)
    if m.grad_sqr is not None and not _foldable(m.grad_sqr, m.grad_var):
        m = msgspec.structs.replace(m, grad_sqr=None, grad_var=None)
    return m


def reportable(m: Measurement) -> Measurement:
    """Returns the measurement without gradients or step times that a receiver would refuse, for an agent to send."""
    gradients = [value for value in (m.grad_sqr, m.grad_var) if value]
    if not all(LEAST_GRADIENT <= value <= MOST_GRADIENT for value in gradients):
        m = msgspec.structs.replace(m, grad_sqr=None, grad_var=None)
    if m.step_s and not LEAST_STEP_S <= m.step_s <= _MOST_S:
        m = msgspec.structs.replace(m, count=0, step_s=0.0, sync_s=0.0, step_var=0.0, sync_var=0.0)
    return m


def _foldable(sqr: float, var: float | None) -> bool:
    if var is None or not 0 <= sqr <= _MOST_OLD or not 0 <= var <= _MOST_OLD:
        return False
    if not sqr or not var:
        return not sqr + var or sqr + var >= _LEAST_OLD
    return min(sqr, var) >= _LEAST_OLD and _LEAST_OLD <= var / sqr <= _MOST_OLD


def _check_configuration(config: Configuration, limits: ReportLimits) -> None:
    _within("nodes", config.nodes, 1, _MOST_COUNT)
    _within("replicas", config.replicas, config.nodes, _MOST_COUNT)
    _within("atomic_batch", config.atomic_batch, 1, _MOST_COUNT)
    _within("accumulation", config.accumulation, 0, _MOST_COUNT)
    _within("servers", config.servers, 0, _MOST_COUNT)
    if config.batch >= MOST_PRODUCT:
        raise InputError(
            f"replicas x atomic_batch x (accumulation + 1) is {config.batch}; it must be below 2^53"
        )
    if limits.data_size is not None and config.batch > max(limits.data_size, config.replicas):
        raise InputError(
            f"the batch size is {config.batch}; it must be at most the {limits.data_size} examples of the data"
        )
    if limits.gpus is not None and config.replicas > max(limits.gpus, 1):
        raise InputError(f"replicas is {config.replicas}; the cluster has {limits.gpus} GPUs")
    if len(config.gpu_type) > _MOST_TEXT or not config.gpu_type.isprintable():
        raise InputError("gpu_type is too long or not printable")


def _within(name: str, value: float, least: float, most: float) -> None:
    # what is not a number is within nothing
    if not least <= value <= most:
        # not by :g, which an integer of a thousand digits would break
        raise InputError(f"{name} is {str(value)[:40]}; it must be between {least:g} and {most:g}")


def _none_or_within(name: str, value: float, least: float, most: float) -> None:
    if value != 0 and not least <= value <= most:
        raise InputError(f"{name} is {str(value)[:40]}; it must be 0 or between {least:g} and {most:g}")

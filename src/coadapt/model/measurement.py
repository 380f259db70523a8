"""What an agent reports: aggregated per configuration, never fitted parameters."""

from __future__ import annotations

from coadapt.model._base import Fact


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
    #: Share of all that it will do that is done, by its own word; None where it does not tell.
    share: float | None = None
    metrics: dict[str, float] = {}
    #: Time that is not steps, since the last report: seconds of one occurrence (their mean, if several) by kind:
    #: "setup", "first_pass" (what reading the data cost over a later pass), "validation", "checkpoint", or the job's own.
    overheads_s: dict[str, float] = {}
    version: int = 1

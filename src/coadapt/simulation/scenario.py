"""Options of a simulation besides trace, policy and cluster: how to read the trace, and the simulated world."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from coadapt.errors import InputError, UnknownNameError
from coadapt.plugins import checked

if TYPE_CHECKING:
    from coadapt.simulation.run import Setting

#: Of the published simulations: seconds between decisions.
PUBLISHED_INTERVAL_S = 60.0
#: Larger values are taken for a mistake: the run would never end.
LONGEST_INTERVAL_S, LONGEST_RESTART_S = 365 * 86400.0, 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Options shared by ``coadapt simulate``, ``compare`` and ``size``; times in seconds."""

    #: Measured tasks; None: those shipped. ``curves``: where their validation curves are, if elsewhere.
    profiles: str | Path | None = None
    curves: str | Path | None = None
    format: str | None = None
    map_profiles: Literal["rigid", "profiles"] = "rigid"
    skip_bad: bool = False
    any_gpu_type: bool = False
    #: Decide at multiples of this; None: when something happens.
    interval_s: float | None = None
    #: Rounds of whole steps for jobs with measured rates; None: none.
    round_s: float | None = None
    restart_s: float = 30.0
    interference: float = 0.0
    links: bool = False
    noise: float = 0.0
    stragglers: float = 0.0
    placement: str | None = None
    #: The setting of the simulations published with Pollux.
    published: bool = False
    #: File of past jobs that are known from the start.
    pool: str | Path | None = None

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            try:
                checked(getattr(self, name), kind, "")
            except ValueError as error:
                raise InputError(f"{name}: {error}") from None
        _check("interval", self.interval_s, 1, LONGEST_INTERVAL_S, "from 1 second to 365 days")
        _check("round", self.round_s, 1, LONGEST_INTERVAL_S, "from 1 second to 365 days")
        _check("restart", self.restart_s, 0, LONGEST_RESTART_S, "from 0 seconds to 30 days")
        _check("interference", self.interference, 0, math.nextafter(1, 0), "at least 0 and below 1")
        _check("noise", self.noise, 0, 2, "from 0 to 2")
        _check("stragglers", self.stragglers, 0, 1, "a probability from 0 to 1")
        if self.links and self.interference:
            raise InputError(
                "--shared-links and --interference are two models of the same effect; use one of them"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Scenario:
        """Makes a scenario from keywords; the error about an unknown keyword suggests a known one."""
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                raise UnknownNameError("option", name, known)
        return cls(**options)

    @property
    def every_s(self) -> float | None:
        """Seconds between decisions: ``interval_s``, or the published interval if ``published`` is set and it is None."""
        return PUBLISHED_INTERVAL_S if self.published and self.interval_s is None else self.interval_s

    def setting(self, seed: int) -> Setting:
        """Returns the simulated world with this seed."""
        from coadapt.simulation.engine.interference import FlatInterference, LinkSharing
        from coadapt.simulation.engine.simulated_executor import constant
        from coadapt.simulation.engine.training_model import TrainingOptions
        from coadapt.simulation.run import Setting

        every_s = self.every_s
        training = TrainingOptions(
            # in round mode reports are due at the decisions that read them
            report_s=TrainingOptions().report_s if every_s is None else every_s,
            resolution_s=1.0 if self.published else 0.0,
            noise=self.noise,
            straggler_chance=self.stragglers,
        )
        return Setting(
            interval_s=every_s,
            change_cost=constant(self.restart_s),
            interference=LinkSharing() if self.links else FlatInterference(self.interference),
            training=training,
            round_s=self.round_s,
            seed=seed,
        )


def _check(name: str, value: float | None, least: float, most: float, rule: str) -> None:
    # written so that a NaN is refused
    if value is not None and not least <= value <= most:
        raise InputError(f"{name} {value:g} is invalid; it must be {rule}")

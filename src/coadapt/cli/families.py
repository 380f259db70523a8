"""Every name a user may type, and the class it stands for. Third parties add theirs by entry points."""

from __future__ import annotations

import difflib
from typing import Any

from coadapt.errors import InputError, UnknownNameError
from coadapt.registry import Family


class _Names(Family):
    """A family whose suggestions look past capital letters."""

    def load(self, name: str) -> Any:
        """See ``Family``."""
        try:
            return super().load(name)
        except UnknownNameError as error:
            near = difflib.get_close_matches(name.lower(), error.known, n=1)
            if name == name.lower() or not near:
                raise
            raise InputError(f"unknown {self.kind} {name!r}; did you mean {near[0]!r}?") from None


POLICIES = _Names(
    "policy",
    {
        "coadapt": "coadapt.policies.coadapt:CoadaptPolicy",
        "fifo": "coadapt.policies.fifo:FifoPolicy",
        "srtf": "coadapt.policies.srtf:SrtfPolicy",
        "fair-share": "coadapt.policies.fair_share:FairSharePolicy",
        "tiresias": "coadapt.policies.tiresias:TiresiasPolicy",
        "gittins": "coadapt.policies.tiresias:TiresiasPolicy",
        "optimus": "coadapt.policies.optimus:OptimusPolicy",
        "pollux": "coadapt.policies.pollux:PolluxPolicy",
        "sia": "coadapt.policies.sia:SiaPolicy",
        "recorded": "coadapt.policies.recorded:RecordedPolicy",
        "drf": "coadapt.policies.fair_share:FairSharePolicy",
    },
    group="coadapt.policies",
)
#: Options that a name stands for besides its class.
PRESETS: dict[str, dict[str, Any]] = {"gittins": {"gittins": True}}
#: What the options of our policies mean, by policy and option; ``coadapt policies`` shows it.
OPTION_HELP: dict[str, dict[str, str]] = {
    "coadapt": {
        "objective": "jct (average completion time), fairness, throughput, mean (power mean of speed-ups) or cost",
        "p": "exponent of the speed-up that jobs are taken to have (jct, cost: 0.7), or of the power mean (-1)",
        "growth": "a job grows to at most so many times the replicas it, or a job like it, was measured with",
        "horizon_s": "seconds over which the time that a change takes has to pay",
        "hysteresis": "share by which a change must gain more than it costs",
        "change_s": "seconds that a change is taken to cost until one was measured",
        "min_run_s": "seconds that a job keeps what it was given",
        "patience": "no job waits longer than so many times its time alone on a fair share ...",
        "least_wait_s": "... and than so many seconds, before it comes first",
        "every_s": "without --interval: look again after so many seconds",
        "weights": "of users or teams, as in prod:2,research:1; 1 where not given",
        "quotas": "most GPUs of users or teams, as in prod:32,research:16",
        "half_life_s": "with weights: seconds after which usage counts half",
    },
    "fifo": {"backfill": "a job that does not fit is passed over by smaller ones behind it"},
    "srtf": {"service": "rank by remaining GPU-seconds instead of seconds"},
    "fair-share": {
        "weights": "of teams or users, as in prod:2,research:1; 1 where not given",
        "by": "whose shares are fair: team or user",
        "preempt": "stop jobs of those above their share for those below",
        "min_run_s": "seconds that a job runs before it may be preempted",
    },
    "tiresias": {
        "thresholds": "GPU-seconds received at which a job moves to the next queue; 57600 is 16 GPU-hours",
        "queues": "use only the first thresholds, for so many queues; none: all",
        "promote_after": "back to the first queue after waiting so many times as long as it ran; none: never",
        "gittins": "rank by the Gittins index of the service received",
        "discretised": "rank by it within the queues; false: in one queue",
        "samples": "GPU-seconds of past jobs that the index is computed from; empty: learned from those that end",
        "quantum_gpu_s": "GPU-seconds over which the index looks ahead",
    },
    "optimus": {
        "oracle": "knows the true speed and length of jobs instead of fitting them",
        "every_s": "without --interval: look again after so many seconds, since jobs have been measured",
    },
    "pollux": {
        "p": "exponent of the power mean of speedups; lower is fairer",
        "restart_s": "seconds that a change of placement is assumed to cost",
        "population": "allocations that the search keeps",
        "generations": "rounds of the search at most",
        "patience": "generations without improvement that end the search; 0: never",
        "tolerance": "share by which the best must grow to count as improved",
        "avoid_interference": "at most one job that spans nodes on each node",
        "published_repair": "where two jobs across nodes meet on a node, also move the jobs behind them, as published",
        "max_nodes_per_job": "nodes that one job may span",
        "every_s": "without --interval: look again after so many seconds, since jobs have been measured",
    },
    "sia": {
        "p": "exponent of the goodputs; lower is fairer",
        "no_allocation": "what a job without GPUs counts; 1 is what it counts at its slowest",
        "restart_s": "seconds that a restart is assumed to take until one of the job was measured",
        "restart_s_of": "the same by profile, known from the start; none: as published",
        "digits": "decimals of a job's worth that count",
        "clip": "the most that a configuration may count",
        "gap": "share of the optimum that the solver may miss",
        "solver_nodes": "nodes that the solver may look at",
        "every_s": "without --interval: look again after so many seconds, since jobs have been measured",
    },
}
OPTION_HELP["gittins"] = OPTION_HELP["tiresias"]
#: Other names for the same thing; listed with the name they stand for.
ALIASES = {"drf": "fair-share"}

PLACERS = _Names(
    "placement",
    {
        "packed": "coadapt.placement.packed:PackedPlacer",
        "tidy": "coadapt.placement.tidy:TidyPlacer",
        "most-free": "coadapt.placement.most_free:MostFreePlacer",
        "aware": "coadapt.placement.aware:AwarePlacer",
        "skew": "coadapt.placement.skew:SkewPlacer",
        "even": "coadapt.placement.even:EvenPlacer",
    },
    group="coadapt.placements",
)

FORMATS = _Names(
    "trace format",
    {
        "csv": "coadapt.simulate.traces:CsvFormat",
        "jsonl": "coadapt.simulate.traces:JsonLinesFormat",
        "pollux": "coadapt.simulate.traces:PolluxFormat",
        "philly": "coadapt.simulate.traces:PhillyFormat",
        "philly-json": "coadapt.simulate.traces:PhillyJsonFormat",
        "helios": "coadapt.simulate.traces:HeliosFormat",
        "pai": "coadapt.simulate.traces:PaiFormat",
        "openb": "coadapt.simulate.traces:OpenbFormat",
        "spot": "coadapt.simulate.traces:SpotFormat",
        "slurm": "coadapt.simulate.traces:SlurmFormat",
        "swf": "coadapt.simulate.traces:SwfFormat",
    },
    group="coadapt.formats",
)

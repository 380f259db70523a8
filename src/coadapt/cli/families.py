"""Every name a user may type, and the class it stands for. Third parties add theirs by entry points."""

from __future__ import annotations

from typing import Any

from coadapt.registry import Family

POLICIES = Family(
    "policy",
    {
        "fifo": "coadapt.policies.fifo:FifoPolicy",
        "srtf": "coadapt.policies.srtf:SrtfPolicy",
        "fair-share": "coadapt.policies.fair_share:FairSharePolicy",
        "tiresias": "coadapt.policies.tiresias:TiresiasPolicy",
        "gittins": "coadapt.policies.tiresias:TiresiasPolicy",
        "optimus": "coadapt.policies.optimus:OptimusPolicy",
        "pollux": "coadapt.policies.pollux:PolluxPolicy",
        "recorded": "coadapt.policies.recorded:RecordedPolicy",
        "drf": "coadapt.policies.fair_share:FairSharePolicy",
    },
    group="coadapt.policies",
)
#: Options that a name stands for besides its class.
PRESETS: dict[str, dict[str, Any]] = {"gittins": {"gittins": True}}
#: Other names for the same thing; listed with the name they stand for.
ALIASES = {"drf": "fair-share"}

PLACERS = Family(
    "placement",
    {
        "packed": "coadapt.placement.packed:PackedPlacer",
        "most-free": "coadapt.placement.most_free:MostFreePlacer",
        "aware": "coadapt.placement.aware:AwarePlacer",
        "skew": "coadapt.placement.skew:SkewPlacer",
    },
    group="coadapt.placements",
)

FORMATS = Family(
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

"""The hand-written samples, and profiles that are good enough for readers."""

from __future__ import annotations

from pathlib import Path

from coadapt.errors import UnknownNameError
from coadapt.model import Batch, JobSpec, Role

SAMPLES = Path(__file__).parent / "samples"
PROFILES = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


def a_profiled_spec(name: str, profile: str, replicas: int, batch: int | None) -> JobSpec:
    """Stands for the real profiles, which readers do not know."""
    if profile not in PROFILES:
        raise UnknownNameError("profile", profile, PROFILES)
    limits = Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024)
    return JobSpec(
        name=name,
        profile=profile,
        requested=replicas,
        requested_batch=batch,
        batch=limits,
        roles=(Role(min=1, max=64),),
        epochs=100.0,
    )

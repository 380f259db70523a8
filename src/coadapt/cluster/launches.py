"""From a job's specification to what its replicas run: the home directory's paths, the agent's address and token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import msgspec

from coadapt.cluster.protocol import Launch
from coadapt.model import JobSpec

#: The address reports of a job are posted to, and the job's token; both empty: it prints them.
Agent = tuple[str, str]


def nobody(job: str) -> Agent:
    """Agents print their reports, and the keeper reads them."""
    return "", ""


def checkpoints_of(home: Path, job: str) -> Path:
    """Where a job's checkpoints are, whatever characters its name has."""
    return home / "checkpoints" / quote(job, safe="")


def launch_of(
    job: str, spec: JobSpec, *, home: Path | None = None, agent_of: Callable[[str], Agent] = nobody
) -> Launch:
    """What replicas of ``job`` run. Without a home there are neither frozen code nor checkpoints."""
    url, token = agent_of(job)
    return Launch(
        command=spec.command,
        envs=spec.envs,
        workdir=str(home / "code" / spec.code) if home and spec.code else "",
        setup=spec.setup,
        gpus={role.name: role.demand.gpus for role in spec.roles},
        checkpoints=str(checkpoints_of(home, job)) if home else "",
        batch=msgspec.json.encode(spec.batch).decode() if spec.batch else "",
        fixed_batch=spec.batch is not None and spec.batch.mode == "fixed",
        url=url,
        token=token,
        paces=_paces(home, spec.profile) if home else {},
        metrics=spec.metrics,
        total_batch=spec.requested_batch or (spec.batch.initial if spec.batch else 0),
        epochs=spec.epochs,
    )


def _paces(home: Path, profile: str) -> dict[str, str]:
    """Files ``HOME/paces/PROFILE.GPUTYPE.json``, by GPU type."""
    name = quote(profile, safe="")
    if not name:
        return {}
    found = sorted((home / "paces").glob(f"{name}.*.json"))
    return {path.name[len(name) + 1 : -len(".json")]: str(path) for path in found}

"""From the specification of a job to the command of its replicas: the source that executors ask when they start a job."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coadapt.model import JobSpec
from coadapt.wire.node_messages import Launch, Limits

#: The address reports of a job are posted to, and the job's token; both empty: it prints them.
Agent = tuple[str, str]


def prints_reports(job: str) -> Agent:
    """Agents print their reports, and the node reads them."""
    return "", ""


class SpecJobSource:
    """Implements ``runtime.ports.JobSource`` over specifications.

    Args:
        spec_of: the specification of a job, by its name.
        agent_of: where a job's agents report to; asked at every start, for the address may change.
        run_as: "submitter": jobs run as the Unix account of the user who submitted them; empty: as the node's process.
    """

    def __init__(
        self,
        spec_of: Callable[[str], JobSpec],
        agent_of: Callable[[str], Agent] = prints_reports,
        *,
        run_as: str = "",
    ) -> None:
        self._spec_of, self._agent_of, self._run_as = spec_of, agent_of, run_as

    def launch(self, job: str) -> Launch:
        """Returns what replicas of ``job`` run, from its specification."""
        spec = self._spec_of(job)
        url, token = self._agent_of(job)
        return Launch(
            job=job,
            command=spec.command,
            envs=spec.envs,
            code=spec.code,
            setup=spec.setup,
            gpus={role.name: role.demand.gpus for role in spec.roles},
            limits={
                role.name: Limits(cpus=role.demand.cpus, memory_bytes=role.demand.memory_bytes)
                for role in spec.roles
                if role.demand.cpus or role.demand.memory_bytes
            },
            account=spec.user if self._run_as == "submitter" else "",
            batch=msgspec.json.encode(spec.batch).decode() if spec.batch else "",
            fixed_batch=spec.batch is not None and spec.batch.mode == "fixed",
            url=url,
            token=token,
            profile=spec.profile,
            metrics=spec.metrics,
            total_batch=spec.requested_batch or (spec.batch.initial if spec.batch else 0),
            epochs=spec.epochs,
            data_size=spec.data_size,
        )

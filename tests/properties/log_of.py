"""``python -m tests.properties.log_of POLICY``: the log of a fixed workload, as a digest; run with several hash seeds."""

from __future__ import annotations

import hashlib
import sys

from coadapt.model import CancelRequested, NodeJoined, NodeLost, encode
from tests.builders import GPUS_ONLY, a_cluster, a_job, a_trained_job, every_policy
from tests.properties.world import Crash, World, live


def workload(name: str) -> World:
    cluster = a_cluster("3x4")
    submissions = []
    for i in range(14):
        after = (f"job-{i - 5}", f"job-{i - 3}") if i % 6 == 5 else ()
        fields = {"user": f"user-{i % 3}", "priority": i % 2, "preemptible": i % 5 != 4, "after": after}
        if i % 3:
            spec = a_trained_job(1 + i % 2, at_most=6, **fields)
        else:
            servers = 1 if name not in GPUS_ONLY and i % 2 else 0
            spec = a_job(1 + i % 5, duration_s=40.0 + 7 * i, servers=servers, retries=2, **fields)
        submissions.append((9.0 * (i // 2), f"job-{i}", spec))
    happenings = (
        (50.0, NodeLost(node="n1")),
        (75.0, Crash("job-3")),
        (80.0, CancelRequested(job="job-7")),
        (120.0, NodeJoined(node=cluster.nodes[1])),
    )
    return World(
        cluster=cluster, submissions=tuple(submissions), happenings=happenings, stop_s=2.0, interference=0.5
    )


if __name__ == "__main__":
    digest = hashlib.sha256()
    for policy in sys.argv[1:]:
        records, _ = live(workload(policy), every_policy()[policy]())
        for record in records:
            digest.update(encode(record) + b"\n")
        sys.stdout.write(f"{policy} {len(records)} {digest.hexdigest()}\n")

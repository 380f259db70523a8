"""Routes of the cluster: nodes, quotas and an overview; draining and opening are for operators, quotas for administrators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version

import msgspec
from msgspec import UNSET

from coadapt.executors import AgentLine
from coadapt.model import AnyEvent, NodeDrained, NodeOpened
from coadapt.model.snapshot import HOLDING, ShownState
from coadapt.policies.coadapt.priorities import MOST_PRIORITY
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.http.problems import Refused, not_found
from coadapt.server.http.routing import Call, Handle, Route
from coadapt.server.log_follower import Follower
from coadapt.server.routes.agents import joined_machines
from coadapt.spec.job_rules import check_name
from coadapt.wire.api import Accepted, ClusterNow, NodeLine, NodePage, Quota, QuotaLine, QuotaPage

_VERSION = version("coadapt")
#: What jobs are called that are not the caller's to see.
OTHERS = "(others)"


def holding(follower: Follower) -> Iterator[JobState]:
    """Returns the jobs whose processes hold GPUs."""
    for phase in HOLDING:
        for name in follower.index.names(phase):
            yield follower.state.jobs[name]


def node_lines(call: Call) -> list[NodeLine]:
    """Returns every node with the jobs on it; jobs that the caller may not see are summed up."""
    follower, visible = call.services.follower, call.services.visible(call.caller)
    held: dict[str, dict[str, int]] = {}
    for job in sorted(holding(follower), key=lambda job: job.order):
        name = job.id if visible(job.id) else OTHERS
        for slot in job.held.slots:
            gpus = slot.replicas * job.spec.role(slot.role).demand.gpus
            if gpus:
                here = held.setdefault(slot.node, {})
                here[name] = here.get(name, 0) + gpus
    return [
        NodeLine(
            node=name,
            gpus=node.node.gpus,
            gpu_type=node.node.gpu_type,
            state="lost" if not node.up else "drained" if node.drained else "up",
            jobs=held.get(name, {}),
            free=max(node.node.gpus - node.held, 0) if node.open else 0,
        )
        for name, node in follower.state.all_nodes.items()
    ]


async def nodes(call: Call) -> NodePage:
    """``GET /v1/nodes``."""
    call.services.follower.refresh()
    lines = node_lines(call)
    joined = await joined_machines(call)
    return NodePage(nodes=[_with_lease(line, joined.get(line.node)) for line in lines])


def _with_lease(line: NodeLine, machine: AgentLine | None) -> NodeLine:
    if machine is None:
        return line
    return msgspec.structs.replace(
        line,
        silent_s=machine.silent_s,
        lease_left_s=machine.lease_left_s,
        remaining_s=machine.remaining_s,
    )


def now(call: Call) -> ClusterNow:
    """``GET /v1/cluster``."""
    services, follower = call.services, call.services.follower
    follower.refresh()
    lines = node_lines(call)
    return ClusterNow(
        now=follower.now,
        seq=follower.state.seq,
        policy=services.options.policy,
        gpus=sum(line.gpus for line in lines if line.state == "up"),
        free_gpus=sum(line.free for line in lines),
        states={state: count for state in ShownState if (count := follower.index.count(state))},
        nodes=lines,
        controller_age_s=services.controller_age_s(),
        version=_VERSION,
        prices=services.prices.by_type,
        currency=services.prices.currency or "",
    )


def _of_node(make: Callable[[str], AnyEvent]) -> Handle:
    async def handle(call: Call) -> Accepted:
        call.services.follower.refresh()
        node = call.path["node"]
        if node not in call.services.follower.state.all_nodes:
            raise not_found("node", node)
        return Accepted(number=await call.services.put(make(node)))

    return handle


def quotas(call: Call) -> QuotaPage:
    """``GET /v1/quotas``: a user sees the own, and those of teams that he or the own jobs are of."""
    follower = call.services.follower
    follower.refresh()
    used: dict[str, int] = {}
    for job in holding(follower):
        for group in {job.spec.user, job.spec.team} - {""}:
            used[group] = used.get(group, 0) + job.held_gpus
    limits, with_deadline = follower.state.quotas, follower.deadlines()
    members = follower.state.members
    groups = sorted({*limits, *used, *follower.state.priorities, *follower.state.deadlines, *members})
    if call.caller.role == "user":
        mine = {
            call.caller.name,
            *(job.spec.team for job in follower.state.active.values() if job.spec.user == call.caller.name),
            *(team for team, names in members.items() if call.caller.name in names),
        }
        groups = [group for group in groups if group in mine]
    state = follower.state
    return QuotaPage(
        quotas=[
            QuotaLine(
                group=group,
                gpus=limits.get(group),
                used=used.get(group, 0),
                priority=state.priorities.get(group, 0),
                deadlines=state.deadlines.get(group),
                deadlines_used=with_deadline.get(group, 0),
                members=None if (names := members.get(group)) is None else list(names),
            )
            for group in groups
        ]
    )


async def set_quota(call: Call) -> Accepted:
    """``PUT /v1/quotas/{group}``."""
    body, group, follower = call.body, call.path["group"], call.services.follower
    check_name("group", group)
    for name, value, most in (("gpus", body.gpus, 1_000_000), ("deadlines", body.deadlines, 1_000_000)):
        if value not in (None, UNSET) and not 0 <= value <= most:
            raise Refused(422, f"{name} must be 0 to {most:,}, or null for no limit")
    if body.priority is not UNSET and not 0 <= body.priority <= MOST_PRIORITY:
        raise Refused(422, f"priority must be 0 to {MOST_PRIORITY}")
    if body.gpus is body.priority is body.deadlines is body.members is UNSET:
        raise Refused(422, "nothing to set; give gpus, priority, deadlines or members")
    if body.members not in (None, UNSET):
        _check_members(call, group, body.members)
    follower.refresh()
    before = follower.granted(group)
    given = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name in ("gpus", "priority", "deadlines", "members")
        if (value := getattr(body, name)) is not UNSET
    }
    return Accepted(number=await call.services.put(msgspec.structs.replace(before, **given)))


#: Members of one team.
_MOST_MEMBERS = 10_000


def _check_members(call: Call, group: str, members: list[str]) -> None:
    if len(members) > _MOST_MEMBERS:
        raise Refused(422, f"a team has at most {_MOST_MEMBERS:,} members")
    for name in members:
        check_name("member", name)
    if call.services.is_user(group):
        raise Refused(422, f"{group!r} is the name of a user; only a team has members")


ROUTES = (
    Route("GET", "/v1/cluster", now, ClusterNow),
    Route("GET", "/v1/nodes", nodes, NodePage),
    Route(
        "POST",
        "/v1/nodes/{node}/drain",
        _of_node(lambda n: NodeDrained(node=n)),
        Accepted,
        "operator",
        status=202,
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/open",
        _of_node(lambda n: NodeOpened(node=n)),
        Accepted,
        "operator",
        status=202,
    ),
    Route("GET", "/v1/quotas", quotas, QuotaPage),
    Route("PUT", "/v1/quotas/{group}", set_quota, Accepted, "admin", Quota, status=202),
)

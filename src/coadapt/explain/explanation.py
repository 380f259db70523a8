"""Explains the present state of a job: the dominant reason with numbers, who holds its GPUs, and what comes next.

``why`` returns an ``Explanation``; ``short`` returns the text for a table and looks at this job alone. The functions
before them explain one group of phases each: jobs that have ended, jobs that wait or are held back, and jobs that hold
GPUs or are being started, resized or stopped. All are pure and read from the state alone; ``why --at T`` explains a log
folded up to T.

The reason that a decision recorded begins with a sentence about what it gave to the job, and goes on with why. The whole
of it is shown only where the job has exactly that; while it is starting or resizing, or waits for its GPUs, a sentence
about what it has now takes the place of the first one. Clauses that name a job which has ended since are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coadapt.errors import InputError
from coadapt.explain.deadline_advice import Advisor
from coadapt.explain.job_progress import Standings
from coadapt.model import Fact, JobSpec, Placement
from coadapt.model.actions import StopWhy
from coadapt.model.retry import CRASH_LOOP, QUICK_S, Failure
from coadapt.model.snapshot import ENDED, Phase, ShownState
from coadapt.policies.coadapt.reservations import RESERVATIONS
from coadapt.scheduler.quotas import least_gpus
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState
from coadapt.units import format_duration

#: Characters of a replica's last line that go into a sentence.
_MOST_LINE = 160

_KINDS = {
    "": "failed",
    "exception": "failed",
    "oom": "ran out of memory",
    "collective": "failed in a collective operation, which timed out or lost a peer",
    "killed": "was killed",
    "hang": "stopped making progress",
    "time-limit": "reached its time limit",
    "start": "could not be started",
}
STOPPED_FOR: dict[StopWhy, str] = {
    "pause": "other jobs get its GPUs",
    "cancel": "it was cancelled",
    "drain": "its node is being drained",
    "node-lost": "its node was lost",
    "hang": "it stopped making progress",
    "time-limit": "it reached its time limit",
}
#: The name of a submitted job: the name in its specification and a number.
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*-\d+")
_CLAUSES = re.compile(r"(?<=[.;]) ")
#: The reason that an executor gives for the exit of one replica: the exit code, or the signal, and what follows from it.
_EXIT = re.compile(r"replica \d+ (?:exited with \d+|was killed by signal (?P<signal>\d+))(?:: .*)?")


def gpus(count: int, types: str = "") -> str:
    """Formats a number of GPUs: "4 GPUs", "1 a100"."""
    return f"{count} {types}" if types else f"{count} GPU{'' if count == 1 else 's'}"


def places(placement: Placement) -> str:
    """Formats the nodes of a placement: "n0, n1"."""
    return ", ".join(dict.fromkeys(slot.node for slot in placement.slots))


def some(names: Sequence[str], most: int = 3) -> str:
    """Formats the first ``most`` names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def failed(failure: Failure) -> str:
    """Describes a failure in a few words: "ran out of memory on replica 3 with exit code 1"."""
    if failure.kind == "time-limit":
        return f"reached its {_time_limit(failure)}"
    words = _KINDS[failure.kind]
    if failure.rank is not None:
        words += f" on replica {failure.rank}"
    exit_ = _EXIT.fullmatch(failure.reason)
    if exit_ is not None and exit_["signal"] is not None:
        words += f" with signal {exit_['signal']}"
    elif failure.exit_code is not None:
        words += f" with exit code {failure.exit_code}"
    if failure.reason and exit_ is None:
        reason = failure.reason.removeprefix("cannot start: ") if failure.kind == "start" else failure.reason
        words += f": {_line(reason)}"
    return words


def failure_sentence(failure: Failure) -> str:
    """Describes the failure of a job: "The script failed on replica 0 with exit code 1."."""
    if failure.kind == "time-limit":
        return f"Stopped at its {_time_limit(failure)}."
    words = failed(failure)
    return f"The script {words}." if failure.kind == "exception" else f"{_capitalised(words)}."


def _time_limit(failure: Failure) -> str:
    """Returns "time limit of 12s". The limit is recorded in the reason only, and not in that of an executor."""
    _, found, limit = failure.reason.partition(" time limit of ")
    return f"time limit of {limit}" if found else "time limit"


def last_line(failure: Failure) -> str:
    """Returns the last non-empty line of the replica that failed first."""
    lines = [line.strip() for line in failure.tail.splitlines() if line.strip()]
    return _line(lines[-1]) if lines else ""


def ended_because(failure: Failure, retries: int) -> str:
    """Explains why a failed job was not tried again."""
    if failure.final == "crash-loop":
        return f" It failed {CRASH_LOOP} times in a row within {format_duration(QUICK_S)} of its start."
    if failure.final == "retries":
        return f" No retries are left ({retries} of {retries} used)." if retries else " It has no retries."
    return ""


def _line(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text).strip()
    return printable if len(printable) <= _MOST_LINE else printable[: _MOST_LINE - 1] + "…"


MOST_HOLDERS = 5


class Holder(Fact, frozen=True):
    """A job that holds GPUs another job waits for; ``eta``: its expected end, if known."""

    job: str
    user: str
    gpus: int
    eta: float | None = None


class Room(Fact, frozen=True):
    """GPUs of the types that a job may use: how many exist, are free, and are needed for its least size."""

    needs: int
    gpus: int
    free: int
    types: str


def room_for(state: SchedulerState, spec: JobSpec) -> Room:
    """Counts the GPUs of the cluster that a job may use."""
    gpus = free = 0
    for node in state.nodes.values():
        if not spec.gpu_types or node.node.gpu_type in spec.gpu_types:
            gpus += node.node.gpus
            free += node.node.gpus - max(node.promised, node.held)
    types = " or ".join(spec.gpu_types)
    return Room(needs=least_gpus(spec), gpus=gpus, free=max(free, 0), types=types)


def gpus_used(state: SchedulerState, job: JobState, spec: JobSpec) -> int:
    """Counts the GPUs, of types that ``spec`` may use, which ``job`` holds or was promised."""
    where = job.held if job.held_gpus >= job.target_gpus else job.target
    return sum(
        slot.replicas * job.spec.role(slot.role).demand.gpus
        for slot in where.slots
        if not spec.gpu_types or slot.gpu_type in spec.gpu_types
    )


def holders(
    state: SchedulerState,
    job: JobState,
    standings: Standings,
    now: float,
    *,
    nodes: frozenset[str] = frozenset(),
) -> tuple[Holder, ...]:
    """Returns the jobs that hold GPUs which ``job`` could use, the largest first, at most ``MOST_HOLDERS``.

    Args:
        state: the scheduler's state.
        job: the job that waits.
        standings: source of the ETAs of the holders.
        now: the moment of the explanation.
        nodes: count GPUs on these nodes only; empty: on all.
    """
    found: list[tuple[int, JobState]] = []
    # those in ``unsettled`` may hold GPUs that are no longer promised to them
    for other in {**state.placed, **state.unsettled}.values():
        if other is job or (nodes and not any(slot.node in nodes for slot in other.held.slots)):
            continue
        gpus = gpus_used(state, other, job.spec)
        if gpus:
            found.append((gpus, other))
    found.sort(key=lambda pair: (-pair[0], pair[1].order))
    return tuple(_holder(state, other, gpus, standings, now) for gpus, other in found[:MOST_HOLDERS])


def _holder(state: SchedulerState, job: JobState, gpus: int, standings: Standings, now: float) -> Holder:
    left = standings.left(state, job, now)
    eta = None if left is None else now + left.quantile(0.5)
    return Holder(job=job.id, user=job.spec.user, gpus=gpus, eta=eta)


class Said(NamedTuple):
    """The text, its code and numbers; ``decided``: it is the reason that the last decision about the job recorded."""

    code: str
    sentence: str
    numbers: Mapping[str, float] = {}
    next: str = ""
    holders: tuple[Holder, ...] = ()
    decided: bool = False


def again(job: str) -> str:
    """Suggests how to run an ended job again. Only the executor knows the checkpoint from which it would go on."""
    return f"Run it again with 'coadapt retry {job}'."


def why_ended(state: SchedulerState, job: JobState) -> Said:
    """Explains how a job ended."""
    if job.phase is Phase.SUCCEEDED:
        return _succeeded(job)
    if job.phase is Phase.FAILED:
        return _failed(job)
    lost = [a for a in job.spec.after if a in state.jobs and _ended_badly(state.jobs[a])]
    if not job.cancelling and lost:
        other = state.jobs[lost[0]]
        sentence = f"Cancelled because {other.id}, on which it depends, {_ended_as(other)}."
        return Said("after", sentence, next=f"Retry {other.id} first, then {job.id}.")
    sentence = "Cancelled by its user" if job.cancelling else "Cancelled"
    if job.attempt:
        sentence += f" after {format_duration(_ran_s(job))} of training"
    return Said("cancelled", sentence + ".", {"ran_s": round(_ran_s(job), 1)}, next=again(job.id))


def _succeeded(job: JobState) -> Said:
    took_s, gpu_s = _took_s(job), job.attained_gpu_s(job.finished_at or 0.0)
    sentence = (
        f"Succeeded {format_duration(took_s)} after submission: {format_duration(_ran_s(job))} of training, "
        f"{gpu_s / 3600:.3g} GPU-hours, {_count(max(job.attempt - 1, 0), 'restart').lower()}."
    )
    numbers = {"took_s": round(took_s, 1), "ran_s": round(_ran_s(job), 1), "gpu_s": round(gpu_s, 1)}
    return Said("succeeded", sentence, numbers)


def _failed(job: JobState) -> Said:
    failure = job.failure
    if failure is None:
        return Said("failed", "Failed.", next=again(job.id))
    line = last_line(failure)
    sentence = f"{failure_sentence(failure)}{f' Last line: {line}.' if line else ''}"
    sentence += ended_because(failure, job.spec.retries)
    numbers = {"attempt": float(failure.attempt), "failures": float(job.tries.failures + 1)}
    if failure.rank is not None:
        numbers["rank"] = float(failure.rank)
    if failure.exit_code is not None:
        numbers["exit_code"] = float(failure.exit_code)
    then = again(job.id)
    if failure.kind == "time-limit":
        then += (
            " Its time limit then counts from zero; to raise it, run "
            f"'coadapt update {job.id} --time-limit TIME' after that."
        )
    return Said(
        failure.final if failure.final == "crash-loop" else failure.kind or "failed", sentence, numbers, then
    )


def _ended_badly(job: JobState) -> bool:
    return job.phase in ENDED and job.phase is not Phase.SUCCEEDED


def _ended_as(job: JobState) -> str:
    return "failed" if job.phase is Phase.FAILED else "was cancelled"


def _took_s(job: JobState) -> float:
    return (job.finished_at or job.submitted_at) - job.submitted_at


def _ran_s(job: JobState) -> float:
    return job.ran_s(job.finished_at or 0.0)


def is_held_back(state: SchedulerState, job: JobState) -> bool:
    """Whether the job itself may not run, whatever is free."""
    if job.quarantine is not None or job.missing_code or job.on_hold:
        return True
    return job.retry_at is not None or job.id in state.blocked


def held_back(state: SchedulerState, job: JobState, now: float) -> Said:
    """Explains a job that is quarantined, without its code, paused, backing off after a failure, or waiting for other jobs."""
    if job.quarantine is not None:
        next_ = f"Release it with 'coadapt retry {job.id}'; its measurements so far are then forgotten."
        return Said("quarantine", in_quarantine(job), next=next_)
    if job.missing_code:
        return Said("code-missing", without_code(job), next=_BRING_CODE)
    if job.on_hold:
        sentence = "Paused on request."
        if job.retry_at is not None and job.failure is not None:
            sentence += f" Before that it {failed(job.failure)}."
        return Said("on-hold", sentence, next=f"Resume it with 'coadapt resume {job.id}'.")
    if job.retry_at is not None:
        how = "failed" if job.failure is None else failed(job.failure)
        tries, left = job.tries.failures, job.spec.retries - job.tries.failures
        sentence = f"Retrying in {until(job.retry_at, now)}. Try {tries} of {job.spec.retries + 1} {how}."
        numbers = {"retry_at": job.retry_at, "failures": float(tries), "retries": float(job.spec.retries)}
        return Said("back-off", sentence, numbers, f"{_count(left, 'retry')} left after that.")
    return blocked(state, job)


_BRING_CODE = (
    "It continues by itself once the code is back: 'coadapt submit' from the same files uploads it again, "
    "or copy the directory into HOME/code."
)


def without_code(job: JobState) -> str:
    """Describes a job that waits for its frozen code."""
    return f"Waiting for its code: the archive {job.spec.code[:12]} is not in the home directory of this cluster."


def in_quarantine(job: JobState) -> str:
    """Describes a job that is left out of decisions."""
    return f"Left out of decisions, so that other jobs continue: {job.quarantine}."


def blocked(state: SchedulerState, job: JobState) -> Said:
    """Explains a job that waits for the success of other jobs."""
    unmet = sorted(state.blocked[job.id])
    each = [
        f"{n} ({state.jobs[n].shown_state.lower()})" if n in state.jobs else f"{n} (not submitted)"
        for n in unmet
    ]
    sentence = f"Waiting for {some(each)} to succeed."
    return Said("after", sentence, {"jobs": float(len(unmet))}, next="Then it joins the queue.")


def reserved_start(state: SchedulerState, job: JobState, now: float) -> tuple[float, str] | None:
    """Returns the latest start that was promised to a waiting job, and the sentence about it; None: none was."""
    made = (state.memory.get(RESERVATIONS) or {}).get(job.id)
    if made is None or made["by"] is None:
        return None
    by: float = made["by"]
    nodes = [node for node, _, _ in made.get("on", ())]
    where = f", on {some(nodes)}" if nodes else ""
    if now <= by:
        return by, f"It starts in {until(by, now)} at the latest{where}."
    blocking = made.get("in_the_way") or ()
    why = f" {some(list(blocking))} {'is' if len(blocking) == 1 else 'are'} in the way." if blocking else ""
    return by, f"It was to start {until(now, by)} ago at the latest.{why}"


def waiting(state: SchedulerState, job: JobState, standings: Standings, now: float) -> Said:
    """Explains why ``job``, which may run, holds no GPUs at ``now``.

    ``standings`` gives the ETAs of the jobs in ``state`` that hold them.
    """
    if job.target:
        where = frozenset(slot.node for slot in job.target.slots)
        found = holders(state, job, standings, now, nodes=where)
        numbers = {"gpus": float(job.target_gpus)}
        return Said("promised", promised(job), numbers, "It starts once their processes have ended.", found)
    room = room_for(state, job.spec)
    found = holders(state, job, standings, now)
    numbers = {"needs_gpus": float(room.needs), "free_gpus": float(room.free), "gpus": float(room.gpus)}
    first = min((holder.eta for holder in found if holder.eta is not None), default=None)
    next_ = "" if first is None else f"The first of them is expected to end in {until(first, now)}."
    if first is not None and first - now < 1:
        next_ = "The first of them is about to end."
    if state.policy_wake_at is not None and state.policy_wake_at > now and not next_:
        next_ = (
            f"The next decision is in {until(state.policy_wake_at, now)}, or earlier if something changes."
        )
    before = f"{_preempted(job, now)} " if job.shown_state is ShownState.PREEMPTED else ""
    if (never := impossible(state, job)) is not None:
        return never._replace(sentence=before + never.sentence, numbers=numbers)
    if (start_by := reserved_start(state, job, now)) is not None:
        numbers["start_by"] = start_by[0]
        next_ = start_by[1]
    if (text := reason_text(state, job)) and job.reason is not None:
        numbers = {**numbers, **job.reason.numbers}
        return Said(job.reason.code, before + text, numbers, next_, found, decided=True)
    if room.gpus < room.needs:
        what = gpus(room.needs, room.types)
        sentence = f"Cannot run here: it needs {what}, and the nodes that accept jobs have {room.gpus}."
        return Said("no-place", before + sentence, numbers, "It waits for nodes that have them.")
    if state.undecided and (
        state.decided_at is None or state.decided_at <= max(job.submitted_at, job.held_since)
    ):
        return Said("undecided", before + f"{queued(job)} The next decision considers it.", numbers, next_)
    if room.free >= room.needs:
        sentence = f"{queued(job)} {room.free} are free, but other jobs come first or the free GPUs are on several nodes."
        return Said("queued", before + sentence, numbers, next_, found)
    by = f" GPUs are held by {some([f'{h.job} ({h.gpus})' for h in found])}." if found else ""
    sentence = f"{queued(job)} {room.free or 'None'} {'is' if room.free < 2 else 'are'} free.{by}"
    return Said("no-room", before + sentence, numbers, next_, found)


def impossible(state: SchedulerState, job: JobState) -> Said | None:
    """Explains a job that needs more GPUs than the quota of its user or team allows; None: no quota is too small."""
    needs = least_gpus(job.spec)
    for group in (job.spec.user, job.spec.team):
        quota = state.quotas.get(group)
        if quota is not None and quota < needs:
            sentence = f"Cannot start: it needs {gpus(needs)}, and the quota of {group} is {quota}."
            then = (
                f"Reduce its minimum with 'coadapt update {job.id} --min-gpus N', or ask for a higher quota."
            )
            return Said("quota", sentence, next=then)
    return None


def queued(job: JobState) -> str:
    """Describes a waiting job about which no decision has recorded a reason."""
    return f"Waiting for {gpus(least_gpus(job.spec), ' or '.join(job.spec.gpu_types))}."


def promised(job: JobState) -> str:
    """Describes a job that was given GPUs which other jobs still hold."""
    what, verb = gpus(job.target_gpus), "is" if job.target_gpus == 1 else "are"
    return f"Waiting for other jobs to release {what} on {places(job.target)} that {verb} reserved for it."


def reason_text(state: SchedulerState, job: JobState) -> str:
    """Returns the recorded reason without clauses that name an ended job.

    Empty if there is none about what the job has now: it must not be older than the last change, with no loss after it.
    """
    if job.reason is None or job.reason_at is None:
        return ""
    if job.changed_at is not None and job.reason_at < job.changed_at:
        return ""
    kept: list[str] = []
    for clause in _CLAUSES.split(job.reason.text):
        if not _names_ended(state, clause):
            kept.append(clause)
        elif kept and clause.endswith("."):
            kept[-1] = f"{kept[-1][:-1]}."
    return " ".join(kept)


def _names_ended(state: SchedulerState, text: str) -> bool:
    return any(name in state.jobs and state.jobs[name].phase in ENDED for name in JOB_NAME.findall(text))


def _because(state: SchedulerState, job: JobState) -> str:
    """Returns the reason without its first sentence, for a job that does not have yet what was decided."""
    rest = reason_text(state, job).partition(". ")[2]
    return f" {rest}" if rest else ""


def in_favour_of(job: JobState) -> str:
    """Formats the jobs that gained by the decision that took the job's GPUs, the largest first."""
    return some([f"{other} ({gpus(count)})" for other, count in job.lost_to])


def _preempted(job: JobState, now: float) -> str:
    since = until(now, job.held_since)
    if job.stop_why is None:
        return f"Lost its processes {since} ago."
    others = in_favour_of(job) if job.stop_why == "pause" else ""
    return f"Preempted {since} ago{f' in favour of {others}' if others else ''}."


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number or 'No'} {noun if number == 1 else plural}"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def until(at: float, now: float) -> str:
    """Formats a moment as a duration from now."""
    return format_duration(max(at - now, 0.0))


def why_running(state: SchedulerState, job: JobState, standings: Standings, now: float) -> Said:
    """Explains the GPUs of ``job`` while it is STARTING, RUNNING or RESIZING.

    ``state`` is the scheduler's state at ``now``; ``standings`` gives the job's ETA.
    """
    sentence, decided = running(state, job, now), bool(reason_text(state, job))
    numbers = dict(job.reason.numbers) if decided and job.reason is not None else {}
    numbers["gpus"] = float(job.held_gpus)
    if job.phase is Phase.RUNNING and job.held == job.target:
        if decided and job.resized_from:
            sentence += f" Resized from {gpus(job.resized_from)} {_ago(job.changed_at, now)}."
        code = job.reason.code if decided and job.reason is not None else "running"
        return Said(code, sentence, numbers, _next(state, job, standings, now), decided=decided)
    if job.phase is Phase.RUNNING:
        waits = holders(state, job, standings, now, nodes=frozenset(s.node for s in job.target.slots))
        numbers["target_gpus"] = float(job.target_gpus)
        next_ = f"It changes once other jobs have released its new GPUs on {places(job.target)}."
        return Said("moving", sentence, numbers, next_, waits, decided)
    since_s = now - job.in_flight_since
    usual = (
        ""
        if job.change_cost_s is None
        else f" Its earlier changes took {format_duration(job.change_cost_s)} on average."
    )
    so_far = f"Under way for {format_duration(since_s)}.{usual}"
    numbers["since_s"] = round(since_s, 1)
    if job.phase is Phase.RESIZING:
        numbers["from_gpus"] = float(job.resized_from)
    return Said(job.phase.lower(), sentence, numbers, so_far, decided=decided)


def running(state: SchedulerState, job: JobState, now: float) -> str:
    """Describes what a STARTING, RUNNING or RESIZING job has now, and why."""
    here = gpus(job.held_gpus)
    if job.phase is Phase.STARTING:
        return f"Starting attempt {job.attempt} on {here} ({places(job.held)}).{_because(state, job)}"
    if job.phase is Phase.RESIZING:
        there = job.target_gpus or job.held_gpus
        if there == job.resized_from:
            return f"Moving to {gpus(there)} on {places(job.target or job.held)}.{_because(state, job)}"
        return f"Resizing from {job.resized_from} to {gpus(there)}.{_because(state, job)}"
    if job.held != job.target:
        if not job.target:
            return f"Running on {here}, which it is about to release.{_because(state, job)}"
        change = (
            f"to be resized to {gpus(job.target_gpus)}"
            if job.target_gpus != job.held_gpus
            else f"to move to {places(job.target)}"
        )
        return f"Running on {here}, {change}.{_because(state, job)}"
    if text := reason_text(state, job):
        return text
    asked = "as requested" if job.held_gpus == job.spec.requested_gpus else "as the policy decided"
    return f"Running on {here}, {asked}, for {format_duration(job.ran_s(now))}."


def stopping(state: SchedulerState, job: JobState, now: float) -> Said:
    """Explains a job that is being stopped."""
    since_s = now - job.in_flight_since if job.phase is Phase.STOPPING else 0.0
    numbers = {"gpus": float(job.held_gpus), "since_s": round(since_s, 1)}
    next_ = f"Its {gpus(job.held_gpus)} become free when its last process has ended."
    if job.cancelling:
        return Said("cancelling", "Stopping: cancelled by its user.", numbers, next_)
    if job.stopped_for is not None:
        left = job.spec.retries - job.tries.failures
        again = f" Then it is retried ({left} left)." if left > 0 else " Then the job has failed."
        if job.stopped_for.kind == "time-limit":
            again = " Then the job has failed."
        sentence = f"Stopping: it {failed(job.stopped_for)}."
        return Said(job.stopped_for.kind, sentence, numbers, next_ + again)
    if job.quarantine is not None:
        return Said("quarantine", f"Stopping. {in_quarantine(job)}", numbers, next_)
    if job.on_hold:
        return Said("on-hold", "Stopping: paused on request.", numbers, next_)
    why = job.stop_why or "pause"
    if why == "pause" and job.target:
        sentence = f"Stopping to restart on {gpus(job.target_gpus)} ({places(job.target)})."
        return Said("moving", sentence + _because(state, job), numbers, next_)
    others = in_favour_of(job) if why == "pause" else ""
    sentence = f"Stopping in favour of {others}." if others else f"Stopping: {STOPPED_FOR[why]}."
    because = _because(state, job) if why == "pause" else ""
    if because and job.reason is not None:
        return Said(why, sentence + because, {**job.reason.numbers, **numbers}, next_, decided=True)
    return Said(why, sentence, numbers, next_)


def _next(state: SchedulerState, job: JobState, standings: Standings, now: float) -> str:
    left = standings.left(state, job, now)
    if left is None:
        return ""
    seconds = left.interval
    most = "" if seconds.high is None else f" to {format_duration(seconds.high)}"
    low = f"{format_duration(seconds.low)}{most or ' or more'}"
    return f"Expected to end in {format_duration(seconds.value)} (80% interval {low})."


def _ago(at: float | None, now: float) -> str:
    return "" if at is None else f"{format_duration(now - at)} ago"


class Explanation(Fact, frozen=True):
    """The explanation of a job at a moment."""

    job: str
    at: float
    state: ShownState
    sentence: str
    code: str
    numbers: dict[str, float] = {}
    holders: tuple[Holder, ...] = ()
    #: What comes next, or what could be done.
    next: str = ""
    #: The decision that it stems from, and when it was made.
    decision: int | None = None
    decided_at: float | None = None
    #: Where its deadline is at risk: by how much, and what would save it.
    advice: str = ""


def why(
    state: SchedulerState,
    job: str,
    now: float | None = None,
    standings: Standings | None = None,
    advisor: Advisor | None = None,
) -> Explanation:
    """Explains why a job is as it is; InputError if there is no such job.

    Args:
        state: the scheduler's state.
        job: id of the job.
        now: the moment of the explanation; None: that of the last record.
        standings: cached statuses and ETAs, for callers that ask often; None: computed anew.
        advisor: cached deadline advice, likewise.
    """
    known = state.jobs.get(job)
    if known is None:
        raise InputError(f"there is no job {job!r}")
    at = state.now if now is None else max(now, state.now)
    standings = standings or Standings()
    said = _said(state, known, standings, at)
    return Explanation(
        job=job,
        at=at,
        state=known.shown_state,
        sentence=said.sentence,
        code=said.code,
        numbers=dict(said.numbers),
        holders=said.holders,
        next=said.next,
        decision=known.reason_decision if said.decided else None,
        decided_at=known.reason_at if said.decided else None,
        advice=(advisor or Advisor(standings)).of(state, known, at),
    )


def _said(state: SchedulerState, job: JobState, standings: Standings, now: float) -> Said:
    if job.phase in ENDED:
        return why_ended(state, job)
    if job.cancelling or job.stopped_for is not None or job.phase is Phase.STOPPING:
        return stopping(state, job, now)
    if is_held_back(state, job):
        return held_back(state, job, now)
    if job.phase in (Phase.PENDING, Phase.PAUSED):
        return waiting(state, job, standings, now)
    return why_running(state, job, standings, now)


def short(state: SchedulerState, job: JobState, now: float) -> str:
    """Returns the text for a table; looks at this job alone."""
    if job.phase in ENDED:
        return why_ended(state, job).sentence
    if job.cancelling or job.stopped_for is not None or job.phase is Phase.STOPPING:
        return stopping(state, job, now).sentence
    if is_held_back(state, job):
        return held_back(state, job, now).sentence
    if job.phase not in (Phase.PENDING, Phase.PAUSED):
        return running(state, job, now)
    if job.target:
        return promised(job)
    never = impossible(state, job)
    return never.sentence if never is not None else reason_text(state, job) or queued(job)

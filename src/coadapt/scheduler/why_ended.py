"""Why a job has ended: how, which rank, its last line."""

from __future__ import annotations

from coadapt.model.snapshot import ENDED, Phase
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.phrases import ended_because, failed, last_line
from coadapt.scheduler.state import SchedulerState
from coadapt.scheduler.why_said import Said
from coadapt.units import format_duration


def again(job: str) -> str:
    """What can be done about its end. Where it goes on from is known to who sees its checkpoints."""
    return f"coadapt retry {job} runs it again"


def said(state: SchedulerState, job: JobState) -> Said:
    """The end of a job in words."""
    if job.phase is Phase.SUCCEEDED:
        return _succeeded(job)
    if job.phase is Phase.FAILED:
        return _failed(job)
    lost = [a for a in job.spec.after if a in state.jobs and _ended_badly(state.jobs[a])]
    if not job.cancelling and lost:
        other = state.jobs[lost[0]]
        sentence = f"cancelled: it was to run after {other.id}, which {_ended_as(other)}"
        return Said("after", sentence, next=f"retry {other.id} first, then {job.id}")
    sentence = "cancelled by its user" if job.cancelling else "cancelled"
    if job.attempt:
        sentence += f" after {format_duration(_ran_s(job))} of training"
    return Said("cancelled", sentence, {"ran_s": round(_ran_s(job), 1)}, next=again(job.id))


def _succeeded(job: JobState) -> Said:
    took_s, gpu_s = _took_s(job), job.attained_gpu_s(job.finished_at or 0.0)
    sentence = (
        f"succeeded {format_duration(took_s)} after its submission: {format_duration(_ran_s(job))} of training, "
        f"{gpu_s / 3600:.3g} GPU-hours, {max(job.attempt - 1, 0)} restarts"
    )
    numbers = {"took_s": round(took_s, 1), "ran_s": round(_ran_s(job), 1), "gpu_s": round(gpu_s, 1)}
    return Said("succeeded", sentence, numbers)


def _failed(job: JobState) -> Said:
    failure = job.failure
    if failure is None:
        return Said("failed", "failed", next=again(job.id))
    sentence = f"{failed(failure)}"
    line = last_line(failure)
    if line:
        sentence += f"; its last line: {line}"
    because = ended_because(failure, job.spec.retries)
    if because:
        sentence += f" ({because})"
    numbers = {"attempt": float(failure.attempt), "failures": float(job.tries.failures + 1)}
    if failure.rank is not None:
        numbers["rank"] = float(failure.rank)
    if failure.exit_code is not None:
        numbers["exit_code"] = float(failure.exit_code)
    then = again(job.id)
    if failure.kind == "time-limit":
        then = f"coadapt update {job.id} --time-limit gives it more, coadapt retry {job.id} as much again"
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

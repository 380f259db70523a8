"""Conformance suite of trace readers: subclass it, implement ``make`` and ``sample``, run pytest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from coadapt.errors import InputError
from coadapt.model import Batch, JobSpec, Role
from coadapt.simulation.traces import TraceFormat, Workload, read_trace


class TraceReaderConformance:
    """Subclass and implement ``make`` and ``sample``."""

    def make(self) -> TraceFormat:
        """A new reader."""
        raise NotImplementedError

    def sample(self) -> Sequence[str]:
        """The lines of a correct trace of at least one job, with their line ends."""
        raise NotImplementedError

    def read(self, lines: Sequence[str], *, strict: bool = True) -> Workload:
        """The workload in the lines."""
        return read_trace(lines, file="sample", format=self.make(), strict=strict, profiles=profiled)

    def test_says_what_it_is(self) -> None:
        reader = self.make()
        assert reader.name
        assert reader.title

    def test_knows_its_own_head_and_survives_any_other(self) -> None:
        reader = self.make()
        written = [line for line in self.sample() if line.strip()]
        assert reader.sniff(written) is True
        for head in ([], ["\n"], ["a,b,c\n"], ["\x00\x01\n"], ["{" * 50 + "\n"]):
            assert reader.sniff(head) in (True, False)

    def test_jobs_come_in_order_with_a_size_and_an_end(self) -> None:
        jobs = self.read(self.sample()).jobs
        assert jobs
        assert [job.at for job in jobs] == sorted(job.at for job in jobs)
        assert len({job.job for job in jobs}) == len(jobs)
        for job in jobs:
            assert job.at >= 0
            assert job.spec.requested_gpus >= 1
            assert job.spec.profile or (job.spec.duration_s or 0) > 0, (
                f"{job.job} has neither a profile nor a duration"
            )

    def test_same_lines_same_workload(self) -> None:
        assert self.read(self.sample()) == self.read(list(self.sample()))

    def test_broken_lines_are_the_users_mistake_never_a_crash(self) -> None:
        """A truncated file or an invalid row gives an InputError; with ``strict=False`` a workload is allowed too."""
        lines = list(self.sample())
        halved = [line[: len(line) // 2] for line in lines]
        for broken in (lines[:1], lines[:-1], halved, [*lines, "\x00,;|{\n"], [*lines, "x,y,z\n"]):
            for strict in (True, False):
                with suppress(InputError):
                    assert self.read(broken, strict=strict).jobs


def profiled(name: str, profile: str, replicas: int, batch: int | None) -> JobSpec:
    """Returns a specification for a job with a profile, in place of the profiles of a simulation.

    Args:
        name: Name of the job.
        profile: Name of its profile.
        replicas: Number of replicas asked for.
        batch: Batch size asked for.
    """
    return JobSpec(
        name=name,
        profile=profile,
        requested=replicas,
        requested_batch=batch,
        batch=Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024),
        roles=(Role(min=1, max=64),),
        epochs=100.0,
    )

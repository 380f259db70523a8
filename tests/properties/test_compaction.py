"""A compacted log gives the state of the original at every mark, bit by bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coadapt.model import (
    Configuration,
    JobStarted,
    Measured,
    Measurement,
    Record,
    ReportsMerged,
    decode,
    encode,
)
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state.compaction import compact
from coadapt.scheduler.state.report_merge import FIELDS, TABLES
from coadapt.scheduler.state.saved_state import load, save
from tests.builders import a_cluster, a_trained_job, every_policy
from tests.properties.test_saved import folded
from tests.properties.world import World, budget, live, worlds

POLICIES = every_policy()


@st.composite
def reports(draw: st.DrawFn) -> Measurement:
    """What an agent may report, with figures of every size, and with parts that are refused."""
    step_s = draw(st.sampled_from([0.0, 0.1, 0.1 + 0.2, 1e-6, 1e-300, 1e7]))
    gradients = draw(st.sampled_from([(None, None), (0.5, 3.0), (1e-15, 1e15), (0.0, 0.0), (1e-300, 1.0)]))
    return Measurement(
        config=Configuration(
            nodes=1,
            replicas=draw(st.integers(1, 3)),
            atomic_batch=draw(st.sampled_from([1, 64, 1 << 40])),
            gpu_type=draw(st.sampled_from(["gpu", "a100"])),
            servers=draw(st.sampled_from([0, 0, 0, 1])),
        ),
        count=draw(st.integers(0, 50)),
        step_s=step_s,
        step_var=draw(st.sampled_from([0.0, 1e-4])),
        sync_s=step_s / 3,
        grad_sqr=gradients[0],
        grad_var=gradients[1],
        work=draw(st.none() | st.floats(0, 1e6)),
        epoch=draw(st.none() | st.floats(0, 10)),
        share=draw(st.none() | st.floats(0, 1)),
        metrics=draw(st.dictionaries(st.sampled_from(["loss", "acc"]), st.floats(-1, 1))),
        overheads_s=draw(st.sampled_from([{}, {}, {"setup": 2.5}])),
    )


def with_reports(records: list[Record], given: list[tuple[float, Measurement, int]]) -> list[Record]:
    """More reports at random places of a log, most of them of attempts that run there, and some of bygone ones."""
    state, running = SchedulerState(), []
    for place, record in enumerate(records):
        state.apply(record)
        running += [(place, job.id, job.attempt) for job in state.jobs.values() if job.holding]
    if not running:
        return records
    mixed = [(float(number), record) for number, record in enumerate(records)]
    for part, measurement, which in given:
        place, job, attempt = running[int(part * (len(running) - 1))]
        event = Measured(job=job, attempt=attempt - (which == 0), measurement=measurement)
        mixed.append((place + 0.5, Record(seq=0, at=records[place].at, event=event)))
    ordered = [record for _, record in sorted(mixed, key=lambda each: each[0])]
    return [replace(record, seq=seq) for seq, record in enumerate(ordered)]


@pytest.mark.parametrize("name", ["fifo", "coadapt"])
def test_state_of_a_compacted_log_is_that_of_the_original_at_every_mark(name: str) -> None:
    merged = 0

    @budget(25)
    @given(
        worlds(),
        st.lists(st.tuples(st.floats(0, 1), reports(), st.integers(0, 20)), min_size=20, max_size=60),
        st.sampled_from([7.0, 30.0, 100.0]),
        st.floats(0, 1),
    )
    def run(world: World, more: list[tuple[float, Measurement, int]], mark_s: float, part: float) -> None:
        nonlocal merged
        plain = [decode(encode(record)) for record in live(world, POLICIES[name]())[0]]
        records = with_reports(plain, more)
        cut = int(part * len(records))
        base = save(folded(records[:cut]))
        done = compact(load(base), records[cut:], mark_s=mark_s, sample_s=mark_s / 3)
        stored = [decode(encode(record)) for record in done.records]
        merged += sum(isinstance(record.event, ReportsMerged) for record in stored)
        assert [r.seq for r in stored] == sorted({r.seq for r in stored})
        original, shorter = load(base), load(base)
        rest, marks = iter(stored), set(done.marks)
        for record in records[cut:]:
            original.apply(record)
            if record.seq in marks:
                for other in rest:
                    shorter.apply(other)
                    if other.seq == record.seq:
                        break
                shorter.validate()
                assert save(shorter) == save(original)
        assert next(rest, None) is None
        if records[cut:]:
            assert done.marks[-1] == records[-1].seq

    run()
    assert merged > 30


def test_reader_that_has_seen_some_of_the_merged_reports_comes_to_the_same_state() -> None:
    """The log may be compacted while it is read: what follows are merged reports of which some were read one by one."""

    @budget(15)
    @given(
        worlds(),
        st.lists(st.tuples(st.floats(0, 1), reports(), st.integers(0, 20)), min_size=20, max_size=60),
        st.floats(0, 1),
    )
    def run(world: World, more: list[tuple[float, Measurement, int]], part: float) -> None:
        plain = [decode(encode(record)) for record in live(world, POLICIES["fifo"]())[0]]
        records = with_reports(plain, more)
        seen = int(part * len(records))
        done = compact(SchedulerState(), records, mark_s=30.0, sample_s=10.0)
        state = folded(records[:seen])
        for record in done.records:
            if record.seq > state.seq:
                state.apply(record)
        assert save(state) == save(folded(records))

    run()


def test_between_marks_progress_and_metrics_are_never_older_than_a_sample() -> None:
    world = World(cluster=a_cluster("1x2"), submissions=((0.0, "job-0", a_trained_job(1, at_most=2)),))
    records, _ = live(world, POLICIES["fifo"]())
    began = next(place for place, r in enumerate(records) if isinstance(r.event, JobStarted))
    start, at = records[: began + 1], records[began].at
    for number in range(60):
        m = Measurement(
            config=Configuration(nodes=1, replicas=1, atomic_batch=8 + number % 3),
            step_s=0.1 + number / 7,
            work=float(number),
            metrics={"loss": 1 / (number + 1)},
        )
        event = Measured(job="job-0", attempt=1, measurement=m)
        start.append(Record(seq=began + 1 + number, at=at + 5.0 * number, event=event))
    done = compact(SchedulerState(), start, mark_s=1e9, sample_s=20.0)
    merged = [r for r in done.records if isinstance(r.event, ReportsMerged)]
    assert 60 * 5 / 20 <= len(merged) <= 2 + 60 * 5 / 20
    original, shorter, rest = SchedulerState(), SchedulerState(), iter(merged)
    later = next(rest)
    for record in start:
        original.apply(record)
        if record.seq == later.seq:
            shorter.apply(later)
            later = next(rest, later)
            job, other = original.jobs["job-0"], shorter.jobs["job-0"]
            assert all(getattr(job, name) == getattr(other, name) for name in FIELDS.keys() - TABLES)
        elif not isinstance(record.event, Measured):
            shorter.apply(record)
    assert save(shorter) == save(original)

"""Agents' reports: into the inbox once, whoever repeats them, and nothing that passes makes the state stumble."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.model import Configuration, Measured, Measurement
from coadapt.scheduler import SchedulerState
from coadapt.wire.agent import Report, check_report, job_token
from tests.builders import records_of
from tests.unit.server.served import NOW, Client, Served, a_measurement, story


def _post(served: Served, client: Client, report: Any) -> Any:
    key = bytes.fromhex((served.home.path / "job_key").read_text())
    import msgspec

    return client.http.post(
        "/v1/jobs/a-1/reports",
        content=msgspec.json.encode(report),
        headers={"Authorization": f"Bearer {job_token(key, 'a-1')}", "Content-Type": "application/json"},
    )


def test_report_counts_once_also_after_a_new_start(served: Served) -> None:
    report = Report(job="a-1", attempt=1, number=4, measurements=(a_measurement(), a_measurement(work=700.0)))
    with served.client() as client:
        assert {_post(served, client, report).status_code for _ in range(3)} == {202}
    with served.client() as client:
        assert _post(served, client, report).status_code == 202
    assert served.inbox() == [
        Measured(job="a-1", attempt=1, measurement=each) for each in report.measurements
    ]


def test_report_before_the_first_step_is_taken(served: Served, client: Client) -> None:
    """The protocol's count 0: an agent has decided or set up something, and made no step since it last reported."""
    told = Measurement(
        config=Configuration(replicas=1, nodes=1, atomic_batch=64), count=0, overheads_s={"setup": 9.0}
    )
    assert (
        _post(served, client, Report(job="a-1", attempt=1, number=1, measurements=(told,))).status_code == 202
    )
    assert served.inbox() == [Measured(job="a-1", attempt=1, measurement=told)]


def test_fields_of_a_newer_agent_are_passed_over(served: Served, client: Client) -> None:
    assert _post(served, client, {"attempt": 1, "number": 1, "mood": "good"}).status_code == 202


AMOUNTS = st.floats() | st.floats(0, 10) | st.integers(-2, 10**20).map(float)
COUNTS = st.integers(-1, 5) | st.integers(-(10**20), 10**20)
MEASUREMENTS = st.builds(
    Measurement,
    config=st.builds(
        Configuration, nodes=COUNTS, replicas=COUNTS, atomic_batch=COUNTS, accumulation=COUNTS, servers=st.just(0) | COUNTS
    ),
    count=COUNTS, step_s=AMOUNTS, step_var=AMOUNTS, sync_s=AMOUNTS, grad_sqr=st.none() | AMOUNTS,
    grad_var=st.none() | AMOUNTS, work=st.none() | AMOUNTS, epoch=st.none() | AMOUNTS,
    metrics=st.dictionaries(st.sampled_from(["loss", "acc"]), AMOUNTS),
)  # fmt: skip


@given(st.lists(MEASUREMENTS, max_size=4))
def test_what_passes_the_check_is_folded(measurements: list[Measurement]) -> None:
    state = SchedulerState()
    for record in records_of(*((NOW, event) for event in story())):
        state.apply(record)
    for number, each in enumerate(measurements):
        try:
            check_report(Report(attempt=1, measurements=(each,)))
        except InputError:
            continue
        (record,) = records_of(
            (NOW + number, Measured(job="a-1", attempt=1, measurement=each)), first=state.seq + 1
        )
        state.apply(record)
    state.validate()

"""What submitting a job would mean, in a sentence."""

from __future__ import annotations

from coadapt.model import DecisionMade, Forecast, JobFinished, JobSpec
from coadapt.model.interval import Interval, Outlook
from coadapt.server.routes.predictions import _notes, _sentence, asked_for
from coadapt.wire.api import Option
from tests.builders import a_job, a_trained_job
from tests.unit.server.served import Client, Served


def _option(gpus: int, ends: float, gpu_s: float) -> Option:
    finishes = Interval(value=ends, low=ends, high=ends)
    return Option(gpus=gpus, batch=None, starts_at=0.0, finishes=finishes, gpu_s=gpu_s, cost=None)


def test_range_is_compared_with_sizes_that_stay_also_with_its_own_first_one() -> None:
    asked = asked_for(a_trained_job(1, at_most=4))
    assert asked == "1..4"
    said = _sentence(_option(1, 320.0, 600.0), [_option(1, 300.0, 300.0)], asked)
    assert said == "With 1 GPU all the time instead of 1..4: ends 20s earlier, 50% less GPU time."


def test_one_size_is_not_compared_with_itself() -> None:
    assert asked_for(a_job(2)) == "2"
    assert _sentence(_option(2, 320.0, 600.0), [_option(2, 320.0, 600.0)], "2") == ""


def test_prediction_of_a_job_that_failed_is_not_still_to_come(served: Served, client: Client) -> None:
    forecast = Forecast(left_s=600.0, low_s=300.0, high_s=900.0)
    served.append(DecisionMade(decision=3, forecasts={"a-1": forecast}))
    said = client.get("root", "/v1/predictions").json()["predictions"]
    assert [(line["job"], line["actual"]) for line in said] == [("a-1", None)]
    served.append(JobFinished(job="a-1", attempt=1, outcome="failed", reason="replica 0 exited with 2"))
    assert client.get("root", "/v1/predictions").json() == {"predictions": []}


def test_time_limit_that_ends_a_job_before_its_deadline_says_nothing_of_a_miss() -> None:
    spec = JobSpec(name="a", deadline_s=1800.0, time_limit_s=300.0)
    assert _notes(Outlook(starts_at=0.0, over_by=300.0, note="why"), spec, 0.0) == ["why"]
    (missed,) = _notes(Outlook(starts_at=0.0, over_by=1801.0), spec, 0.0)
    assert missed == "The deadline will be missed on the cluster as it is now."

"""Limits, keys, sentences, metrics and the table of what is checked."""

from __future__ import annotations

import re
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from coadapt.errors import InputError
from coadapt.model import JobFinished
from coadapt.runtime.controller import ControllerStatus
from coadapt.server import services
from coadapt.server.event_text import discreet
from coadapt.server.http.problems import Refused
from coadapt.server.http.rate_limit import Limits
from coadapt.spec.job_rules import check_metrics
from coadapt.spec.prices import Prices, read_prices
from coadapt.store.home import secret_of
from coadapt.wire.agent import is_token_of, job_token
from tests.unit.server.served import Client, Served


def test_bucket_fills_again_at_its_rate() -> None:
    now = [0.0]
    limits = Limits(2.0, 3.0, clock=lambda: now[0])
    for _ in range(3):
        limits.take("a")
    with pytest.raises(Refused) as refused:
        limits.take("a")
    assert refused.value.problem.retry_after_s == pytest.approx(0.5)
    limits.take("b")
    now[0] = 0.5
    limits.take("a")


def test_key_is_made_once_by_whoever_is_first(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(secret_of, [tmp_path / "key"] * 16))
    assert len(keys) == 1
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    (tmp_path / "key").write_text("zz")
    with pytest.raises(InputError):
        secret_of(tmp_path / "key")


def test_token_is_of_one_job_and_one_key() -> None:
    token = job_token(b"k" * 32, "a-1")
    assert is_token_of(b"k" * 32, "a-1", token)
    assert not is_token_of(b"k" * 32, "a-2", token)
    assert not is_token_of(b"l" * 32, "a-1", token)
    assert not is_token_of(b"k" * 32, "a-1", "ü")


def test_sentence_names_no_job_of_others() -> None:
    said = discreet("a-1 waits for b-2 and c-3", lambda n: n != "c-3", lambda n: n == "a-1")
    assert said == "a-1 waits for another user's job and c-3"


@pytest.mark.parametrize(
    "pattern", [r"loss[:=]\s*([\d.]+)", r"acc (\d+)%", r"^step \d+ .*? val=(-?\d+\.\d+)"]
)
def test_usual_expressions_pass(pattern: str) -> None:
    check_metrics({"loss": pattern})


@pytest.mark.parametrize(
    "pattern", [r"(a*)*", r"(?:(x+)y?)+", r"(\w+\s?)*", r"(a)\1", "[", "(a)(b)", "(" + "a" * 400 + ")"]
)
def test_expressions_that_could_take_for_ever_do_not(pattern: str) -> None:
    with pytest.raises(InputError):
        check_metrics({"loss": pattern})


def test_metrics_tell_how_long_decisions_took_and_how_many_there_were(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = ControllerStatus()
    for seconds in (0.002, 0.02, 0.02, 60.0):
        status.decided(seconds)
    with closing(served.store.log()) as events:
        events.save_status(msgspec.json.encode(status).decode())
    monkeypatch.setattr(services, "_LEASE_S", 0.0)  # it is asked anew every time
    text = client.http.get("/metrics").text
    assert "coadapt_decisions_total 2.0" in text
    assert 'coadapt_decision_duration_seconds_bucket{le="0.01"} 1.0' in text
    assert 'coadapt_decision_duration_seconds_bucket{le="0.03"} 3.0' in text
    assert 'coadapt_decision_duration_seconds_bucket{le="+Inf"} 4.0' in text
    assert "coadapt_decision_duration_seconds_sum 60.042" in text


def test_every_metric_that_the_grafana_page_draws_is_there(client: Client) -> None:
    client.get("root", "/v1/jobs")  # so that there is a request to tell of
    drawn = (Path(__file__).parents[3] / "docs" / "grafana.json").read_text()
    names = set(re.findall(r"coadapt_[a-z_]+", drawn))
    text = client.http.get("/metrics").text
    assert len(names) > 10
    assert {name for name in names if not re.search(rf"^{name}[ {{]", text, re.MULTILINE)} == set()


def test_metrics_tell_gpus_goodput_and_productive_share_apart(served: Served, client: Client) -> None:
    text = client.http.get("/metrics").text
    for line in (
        'coadapt_jobs{state="running"} 1.0',
        'coadapt_gpus{gpu_type="gpu"} 4.0',
        'coadapt_gpus_used{gpu_type="gpu"} 4.0',
        "coadapt_productive_share 1.0",
    ):
        assert line in text.splitlines()
    goodput = next(
        line for line in text.splitlines() if line.startswith("coadapt_goodput_examples_per_second ")
    )
    assert float(goodput.split()[1]) == pytest.approx(64 * 2 / 3)
    served.append(JobFinished(job="a-1", attempt=1, outcome="succeeded"))
    assert 'coadapt_jobs{state="succeeded"} 1.0' in client.http.get("/metrics").text


def test_prices_make_costs(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("gpu: 3.6\ncurrency: EUR\n")
    assert read_prices(str(file)) == Prices({"gpu": 3.6}, "EUR")
    served = Served(tmp_path, prices=str(file))
    with served.client() as client:
        assert client.get("ada", "/v1/jobs/a-1").json()["line"]["cost"] == pytest.approx(0.4)
    served.close()
    file.write_text("gpu: dear\n")
    with pytest.raises(InputError):
        read_prices(str(file))


def test_ready_when_a_controller_is_at_work(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_LEASE_S", 0.0)
    with served.client() as client:
        assert "no controller" in client.http.get("/readyz").json()["error"]
        controller = served.store.log()
        controller.acquire("me", 60.0, 0.0)
        controller.close()
        assert client.http.get("/readyz").status_code == 200
        assert client.get("ada", "/v1/cluster").json()["controller_age_s"] is not None

"""Whatever the published description allows, and much that it does not, is answered as described: never by a fault of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from coadapt.server.app import all_routes
from coadapt.server.routes import events, metrics
from coadapt.wire.agent import job_token
from tests.integration.server_process import running
from tests.unit.server.served import Served

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
NAMES = {"job": "a-1", "node": "n0", "group": "ada", "name": "bob"}
ROUTES = [
    (route.method, route.path)
    for route in all_routes(events.Streams(), metrics.Metrics(lambda: None))  # type: ignore[arg-type, return-value]
    # a stream has no end; without a controller /readyz says 503; archives and simulations have tests of their own
    if route.path not in ("/v1/stream", "/readyz", "/v1/eta", "/v1/preview", "/v1/code/{sha256}")
]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    served = Served(tmp_path_factory.mktemp("schema"), listen="127.0.0.1:0", requests_per_s=1e9, burst=10**9)
    with running(served.home.path) as (_, host, port):
        found = schemathesis.openapi.from_url(f"http://{host}:{port}/openapi.json")
        yield found, job_token(bytes.fromhex((served.home.path / "job_key").read_text()), "a-1")
    served.close()


CASES = [
    (method, path, mode)
    for method, path in ROUTES
    for mode in GenerationMode
    # what takes nothing at all cannot be asked wrongly
    if mode is GenerationMode.POSITIVE or path not in ("/healthz", "/metrics")
]


@pytest.mark.parametrize(("method", "path", "mode"), CASES, ids=str)
def test_no_request_is_answered_by_a_fault(
    described: Any, method: str, path: str, mode: GenerationMode
) -> None:
    schema, own = described
    token = own if path.endswith("/reports") else "token-of-root"
    operation = schema[path][method]

    @settings(
        max_examples=30,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if mode is GenerationMode.POSITIVE:
            # names that exist: otherwise every path would end at a 404
            case.path_parameters = {name: NAMES[name] for name in case.path_parameters or {}}
        if path.endswith("/why"):
            case.query = {}  # a moment of the past is asked of a process that has its own test
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=CHECKS, timeout=300)

    ask()

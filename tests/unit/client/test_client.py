from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
import pytest

from coadapt.client import Client, NotFoundError, RefusedError, UnreachableError
from coadapt.errors import InputError
from coadapt.model import JobSpec
from coadapt.wire import api
from tests.unit.client.fake import FakeController, fake_controller


@pytest.fixture
def fake() -> Iterator[FakeController]:
    with fake_controller() as controller:
        yield controller


def a_line(job: str, order: int, state: str = "RUNNING") -> api.JobLine:
    return api.JobLine(job=job, name=job, user="u", team="", order=order, state=state, submitted_at=1.0)


def test_submit_sends_spec_token_and_key(fake: FakeController) -> None:
    fake.answers["POST /v1/jobs"] = (201, api.Submitted(job="a-1"))
    spec = JobSpec(name="a", command=("true",))
    with Client(fake.url, "secret") as client:
        assert client.submit(spec, key="k") == "a-1"
    asked = fake.asked[0]
    assert msgspec.json.decode(asked.body, type=api.Submit).spec == spec
    assert asked.headers["Authorization"] == "Bearer secret"
    assert asked.headers["Idempotency-Key"] == "k"


def test_connection_lost_while_submitting_is_tried_again_with_the_same_key(fake: FakeController) -> None:
    fake.answers["GET /v1/me"] = api.Me(name="u", role="user")
    fake.answers["POST /v1/jobs"] = [(0, b""), (201, api.Submitted(job="a-1"))]
    with Client(fake.url) as client:
        client.me()
        assert client.submit(JobSpec(name="a")) == "a-1"
    keys = [asked.headers.get("Idempotency-Key") for asked in fake.asked[1:]]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_cancel_is_not_sent_twice(fake: FakeController) -> None:
    fake.answers["GET /v1/me"] = api.Me(name="u", role="user")
    fake.answers["POST /v1/jobs/a/cancel"] = (0, b"")
    with Client(fake.url) as client:
        client.me()
        with pytest.raises(UnreachableError):
            client.cancel("a")
    assert len(fake.asked) == 2


def test_all_jobs_reads_every_page(fake: FakeController) -> None:
    first = api.JobPage(jobs=[a_line("c", 2), a_line("b", 1)], total=3, next=1)
    last = api.JobPage(jobs=[a_line("a", 0)], total=3)
    fake.answers["GET /v1/jobs"] = [first, last]
    with Client(fake.url) as client:
        assert [line.job for line in client.all_jobs()] == ["c", "b", "a"]
    assert "after=1" in fake.asked[1].path


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(404, NotFoundError, 2), (422, RefusedError, 2), (403, RefusedError, 2), (503, UnreachableError, 4)],
)
def test_problem_is_its_one_line(
    fake: FakeController, status: int, kind: type[InputError], code: int
) -> None:
    fake.answers["GET /v1/me"] = (status, api.Problem(error="because of this"))
    with Client(fake.url) as client, pytest.raises(kind, match="because of this") as caught:
        client.me()
    assert caught.value.exit_code == code


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b"[]", b'{"name": 7}'])
def test_answer_of_something_else_is_said(fake: FakeController, body: bytes) -> None:
    fake.answers["GET /v1/me"] = (200, body)
    with Client(fake.url) as client, pytest.raises(UnreachableError, match="not a controller"):
        client.me()


def test_nobody_there_names_the_address() -> None:
    with socket.socket() as silent:
        # taken, so that nobody else listens there meanwhile, and not listened on
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(UnreachableError, match=str(port)):
            client.me()


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8642", "ftp://x", "http://", "", "http://127.0.0.1:99999", "http://127.0.0.1:abc",
        "http://[::1", "http://a b:1", "http://h:1/a b", "http://h:1/\udcff",
    ],
)  # fmt: skip
def test_wrong_address_is_wrong_input(url: str) -> None:
    with pytest.raises(InputError, match="address"):
        Client(url)


@pytest.mark.parametrize("host", ["..", "a" * 80])
def test_host_that_cannot_be_is_unreachable(host: str) -> None:
    with Client(f"http://{host}:1") as client, pytest.raises(UnreachableError, match="no controller at"):
        client.me()


@pytest.mark.parametrize("file", ["/nowhere.pem", __file__])
def test_wrong_authority_is_wrong_input_and_names_the_file(file: str) -> None:
    with pytest.raises(InputError, match=file):
        Client("https://127.0.0.1:1", ca_file=file)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_name_that_no_node_group_or_token_has_is_refused(name: str) -> None:
    with Client("http://127.0.0.1:1") as client:
        for ask in (client.drain, client.open, client.revoke_token, lambda group: client.set_quota(group, 1)):
            with pytest.raises(InputError, match="is not the name of a"):
                ask(name)


@pytest.mark.parametrize("key", ["a\nb", "a b", "\udcff", "ü"])
def test_key_that_cannot_be_a_header_is_refused(key: str) -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(InputError, match="key"):
        client.submit(JobSpec(name="a", command=("true",)), key=key)


def test_text_that_is_no_text_is_refused_in_one_line() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(InputError, match="UTF-8"):
        client.submit(JobSpec(name="a", command=("ls", "\udcff")))


def test_token_with_a_line_end_is_refused_before_it_becomes_a_header() -> None:
    with pytest.raises(InputError, match="token"):
        Client("http://127.0.0.1:1", "secret\r\nX-Other: 1")


@pytest.mark.parametrize("job", ["../nodes", "a/b", "a?x=1", "a b", "ü"])
def test_names_are_quoted_into_one_part_of_the_path(fake: FakeController, job: str) -> None:
    with Client(fake.url) as client, pytest.raises(NotFoundError):
        client.job(job)
    assert fake.asked[0].path.count("/") == 3
    assert "?" not in fake.asked[0].path


@pytest.mark.parametrize("job", ["", ".", ".."])
def test_name_that_no_job_has_is_refused(job: str) -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(InputError, match="name of a job"):
        client.job(job)


def test_wait_returns_the_ended_job(fake: FakeController) -> None:
    def detail(state: str) -> api.JobDetail:
        return api.JobDetail(line=a_line("a", 0, state), spec=JobSpec(name="a"), placement={})

    fake.answers["GET /v1/jobs/a"] = [detail("RUNNING"), detail("RUNNING"), detail("SUCCEEDED")]
    seen: list[str] = []
    with Client(fake.url) as client:
        line = client.wait("a", look_again_s=0.0, on_look=lambda each: seen.append(each.state))
    assert line.state == "SUCCEEDED"
    assert seen == ["RUNNING", "RUNNING", "SUCCEEDED"]


def test_stream_gives_events_and_skips_heartbeats(fake: FakeController) -> None:
    event = api.EventLine(seq=7, at=1.0, kind="JobSubmitted", job="a")
    body = b": beat\n\nid: 7\ndata: " + msgspec.json.encode(event) + b"\n\n"
    fake.answers["GET /v1/stream"] = (200, body)
    with Client(fake.url) as client:
        assert list(client.stream(after=6)) == [event]

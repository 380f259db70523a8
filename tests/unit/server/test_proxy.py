"""Sign-in by a reverse proxy: its headers count with its address and its secret, and from nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from coadapt.errors import InputError
from coadapt.server import services
from coadapt.server.proxy import checked_proxy
from coadapt.wire.serve_options import ServeOptions
from tests.unit.server.served import Client, Served, a_submission
from tests.waiting import until

ROLES = {"gpu-admins": "admin", "ops": "operator", "*": "user"}
PEER = "127.0.0.1"


class Behind:
    """An API with a trusted proxy, which can be spoken to as the proxy or around it."""

    def __init__(self, served: Served, http: TestClient) -> None:
        self.served, self.http = served, http
        self.secret = (served.home.path / "proxy_secret").read_text().strip()

    def ask(self, user: str, method: str, path: str, *, groups: str = "", **more: Any) -> Any:
        headers = {
            "X-Coadapt-Proxy-Secret": self.secret,
            "X-Forwarded-User": user,
            "X-Forwarded-Groups": groups,
            "X-Forwarded-For": "203.0.113.7, 192.0.2.9",
            **more.pop("headers", {}),
        }
        return self.http.request(method, path, headers=headers, **more)


@contextmanager
def behind(path: Path, *, peer: str = PEER, **options: Any) -> Iterator[Behind]:
    served = Served(path, **{"trust_proxy": (PEER,), "proxy_roles": ROLES} | options)
    with TestClient(served.app(), base_url="http://127.0.0.1:8642", client=(peer, 5)) as http:
        yield Behind(served, http)
    served.close()


def test_proxy_names_the_user_and_his_groups_give_the_role(tmp_path: Path) -> None:
    with behind(tmp_path) as proxied:
        for groups, role in (
            ("", "user"),
            ("staff", "user"),
            ("staff, ops", "operator"),
            ("ops,gpu-admins", "admin"),
        ):
            answer = proxied.ask("zoe", "GET", "/v1/me", groups=groups)
            assert answer.json() == {"name": "zoe", "role": role}
        assert "a-1" in proxied.ask("ada", "GET", "/v1/jobs").text
        assert "a-1" not in proxied.ask("bob", "GET", "/v1/jobs").text
        assert proxied.ask("ada", "GET", "/").status_code == 200
        assert proxied.ask("ada", "GET", "/audit").status_code == 403
        assert proxied.ask("ada", "GET", "/audit", groups="ops").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Coadapt-Proxy-Secret": ""},
        {"X-Coadapt-Proxy-Secret": "0" * 64},
        {"X-Coadapt-Proxy-Secret": "\u00e9".encode()},
        {"X-Forwarded-User": ""},
        {"X-Forwarded-User": "a b"},
        {"X-Forwarded-User": "../ada"},
        {"X-Forwarded-User": "ada@example.org"},
        {"X-Forwarded-User": "x" * 64},
    ],
    ids=str,
)
def test_without_the_secret_or_a_name_nobody_is_signed_in(tmp_path: Path, headers: dict[str, str]) -> None:
    with behind(tmp_path) as proxied:
        before = proxied.served.digest()
        assert proxied.ask("root", "GET", "/v1/me", groups="gpu-admins", headers=headers).status_code == 401
        answer = proxied.ask("root", "GET", "/", groups="gpu-admins", headers=headers, follow_redirects=False)
        assert answer.status_code == 303
        assert proxied.served.digest() == before


def test_from_elsewhere_the_headers_are_ignored_even_with_the_secret(tmp_path: Path) -> None:
    with behind(tmp_path, peer="10.9.9.9") as outside:
        assert outside.ask("root", "GET", "/v1/me", groups="gpu-admins").status_code == 401
        header = {"Authorization": "Bearer token-of-ada"}
        assert outside.ask("root", "GET", "/v1/me", headers=header).json()["name"] == "ada"


def test_without_trusted_proxies_the_headers_are_ignored(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with TestClient(served.app(), base_url="http://127.0.0.1:8642", client=(PEER, 5)) as http:
        for secret in ("", "0" * 64):
            headers = {"X-Forwarded-User": "root", "X-Coadapt-Proxy-Secret": secret}
            assert http.get("/v1/me", headers=headers).status_code == 401
    served.close()


def test_user_without_a_role_is_refused(tmp_path: Path) -> None:
    with behind(tmp_path, proxy_roles={"ops": "operator"}) as proxied:
        answer = proxied.ask("zoe", "GET", "/v1/me", groups="staff")
        assert answer.status_code == 403
        assert "no group of zoe has a role" in answer.json()["error"]
        assert proxied.ask("zoe", "GET", "/", groups="staff").status_code == 403


def test_two_names_are_none(tmp_path: Path) -> None:
    with behind(tmp_path) as proxied:
        headers = [
            ("X-Coadapt-Proxy-Secret", proxied.secret),
            ("X-Forwarded-User", "ada"),
            ("X-Forwarded-User", "root"),
        ]
        assert proxied.http.get("/v1/me", headers=headers).status_code == 401


def test_token_comes_before_the_proxy(tmp_path: Path) -> None:
    with behind(tmp_path) as proxied:
        header = {"Authorization": "Bearer token-of-ada"}
        assert proxied.ask("zoe", "GET", "/v1/me", groups="ops", headers=header).json()["name"] == "ada"
        wrong = {"Authorization": "Bearer guess"}
        assert proxied.ask("zoe", "GET", "/v1/me", groups="ops", headers=wrong).status_code == 401


def test_other_sites_cannot_change_anything_by_the_proxy(tmp_path: Path) -> None:
    with behind(tmp_path) as proxied:
        before = proxied.served.digest()
        ours = {"Coadapt-Request": "1"}
        for headers in ({}, {"Sec-Fetch-Site": "same-origin"}, {**ours, "Sec-Fetch-Site": "cross-site"}):
            for method, path, body in (
                ("POST", "/v1/jobs/a-1/cancel", None),
                ("POST", "/v1/jobs", a_submission()),
                ("GET", "/v1/tokens", None),
            ):
                answer = proxied.ask("zoe", method, path, groups="gpu-admins", headers=headers, json=body)
                assert answer.status_code == 401, (method, path, headers)
        assert proxied.served.digest() == before
        answer = proxied.ask("zoe", "POST", "/v1/jobs/a-1/cancel", groups="ops", headers=ours)
        assert answer.status_code == 202
        (entry,) = [entry for entry in proxied.served.audit() if entry.action == "cancel"]
        assert (entry.actor, entry.role, entry.via, entry.address) == (
            "zoe",
            "operator",
            "proxy",
            "192.0.2.9",
        )


def test_first_request_is_recorded_as_a_sign_in(tmp_path: Path) -> None:
    with behind(tmp_path) as proxied:
        for _ in range(5):
            proxied.ask("zoe", "GET", "/v1/me")
            proxied.ask("zoe", "GET", "/")
        until(lambda: proxied.served.audit() != [], "no sign-in is recorded")
        (entry,) = proxied.served.audit()
        assert (entry.actor, entry.via, entry.action, entry.address) == (
            "zoe",
            "proxy",
            "sign-in",
            "192.0.2.9",
        )


def test_strangers_behind_the_proxy_are_counted_by_their_own_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "STRANGERS", (0.0001, 2.0))
    with behind(tmp_path) as proxied:

        def guess(address: str) -> int:
            headers = {"Authorization": "Bearer guess", "X-Forwarded-For": address}
            status: int = proxied.ask("", "GET", "/v1/me", headers=headers).status_code
            return status

        assert [guess("192.0.2.1") for _ in range(3)] == [401, 401, 429]
        # what a client wrote in front is not believed
        assert guess("198.51.100.1, 192.0.2.1") == 429
        assert guess("192.0.2.2") == 401
        assert guess("not an address") == 401


def test_cookie_is_secure_where_the_proxy_encrypts(tmp_path: Path) -> None:
    with behind(tmp_path) as proxied:
        for scheme, secure in (("https", True), ("http", False)):
            answer = proxied.ask(
                "", "POST", "/sign-in", data={"token": "token-of-ada"}, follow_redirects=False,
                headers={"X-Forwarded-Proto": scheme},
            )  # fmt: skip
            assert ("secure" in answer.headers["set-cookie"].lower()) == secure


def test_host_names_behind_a_proxy(tmp_path: Path) -> None:
    with behind(tmp_path, hosts=("gpus.example.org",)) as proxied:
        assert proxied.ask("ada", "GET", "/v1/me", headers={"Host": "gpus.example.org"}).status_code == 200
        assert proxied.ask("ada", "GET", "/v1/me", headers={"Host": "evil.example"}).status_code == 421


def test_limit_is_per_user_however_he_comes(tmp_path: Path) -> None:
    with behind(tmp_path, requests_per_s=0.001, burst=3) as proxied:
        client = Client(proxied.http)
        assert proxied.ask("ada", "GET", "/v1/me").status_code == 200
        assert client.get("ada", "/v1/me").status_code == 200
        client.http.post("/sign-in", data={"token": "token-of-ada"}, follow_redirects=False)
        assert client.http.get("/v1/me").status_code == 200
        assert client.http.get("/v1/me").status_code == 429
        assert client.get("ada", "/v1/me").status_code == 429
        assert proxied.ask("ada", "GET", "/v1/me").status_code == 429
        assert proxied.ask("bob", "GET", "/v1/me").status_code == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trust_proxy": ("gpu-box",), "proxy_roles": ROLES}, "'gpu-box' is not an address or a network"),
        ({"trust_proxy": ("10.0.0.0/99",), "proxy_roles": ROLES}, "not an address or a network"),
        ({"trust_proxy": (PEER,)}, "needs --proxy-role"),
        ({"proxy_roles": ROLES}, "needs --trust-proxy"),
        ({"trust_proxy": (PEER,), "proxy_roles": {"a": "root"}}, "unknown role 'root'"),
        (
            {"trust_proxy": (PEER,), "proxy_roles": ROLES, "proxy_user_header": "a b"},
            "not the name of a header",
        ),
        ({"trust_proxy": (PEER,), "proxy_roles": ROLES, "proxy_user_header": "Cookie"}, "use another one"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        checked_proxy(ServeOptions(**options))
    assert "\n" not in str(error.value)

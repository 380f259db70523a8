"""Signing in to the dashboard: what the cookie opens, what it never opens, and links for one use."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from coadapt.server.callers import GOOD_S, LIVES_S, make_code, use_code
from tests.unit.server.served import NOW, Client, Served, a_submission

COOKIE = "coadapt8642"


def sign_in(client: Client, who: str, **headers: str) -> int:
    status: int = client.http.post(
        "/sign-in", data={"token": f"token-of-{who}"}, headers=headers, follow_redirects=False
    ).status_code
    return status


def test_stranger_is_asked_to_sign_in_and_comes_back(client: Client) -> None:
    asked = client.http.get("/jobs/a-1", follow_redirects=False)
    assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in?next=/jobs/a-1")
    entered = client.http.post(
        "/sign-in", data={"token": "token-of-ada", "next": "/jobs/a-1"}, follow_redirects=False
    )
    assert (entered.status_code, entered.headers["location"]) == (303, "/jobs/a-1")
    assert client.http.get("/jobs/a-1").status_code == 200


def test_cookie_is_for_this_browser_only(client: Client) -> None:
    answer = client.http.post("/sign-in", data={"token": "token-of-ada"}, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie.lower().split("; "))
    assert "secure" not in cookie.lower()
    assert "token-of-ada" not in cookie


def test_cookie_is_secure_under_tls(client: Client) -> None:
    answer = client.http.post(
        "https://127.0.0.1:8642/sign-in", data={"token": "token-of-ada"}, follow_redirects=False
    )
    assert "secure" in answer.headers["set-cookie"].lower().split("; ")


@pytest.mark.parametrize("who", ["stranger", "old"])
def test_wrong_or_void_token_gets_no_cookie(client: Client, who: str) -> None:
    assert sign_in(client, who) == 401
    assert COOKIE not in client.http.cookies


@pytest.mark.parametrize(
    "next_", ["//evil.example", "https://evil.example", "/\\evil.example", "/v1/tokens", "/jobs/a\r\nX: y"]
)
def test_no_address_of_others_is_gone_on_to(client: Client, next_: str) -> None:
    answer = client.http.post(
        "/sign-in", data={"token": "token-of-ada", "next": next_}, follow_redirects=False
    )
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
     {"origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-site"}],
    ids=str,
)  # fmt: skip
def test_form_of_another_site_signs_nobody_in_or_out(client: Client, headers: dict[str, str]) -> None:
    assert sign_in(client, "ada", **headers) == 403
    assert sign_in(client, "ada", origin="http://127.0.0.1:8642") == 303
    assert client.http.post("/sign-out", headers=headers).status_code == 403
    assert client.http.get("/v1/me").status_code == 200


def test_cookie_reads_and_changes_nothing(served: Served, client: Client) -> None:
    sign_in(client, "root")
    assert client.http.get("/v1/me").json() == {"name": "root", "role": "admin"}
    before = served.digest()
    for method, path, body in (
        ("POST", "/v1/jobs", a_submission()),
        ("POST", "/v1/preview", a_submission()),
        ("POST", "/v1/jobs/a-1/cancel", None),
        ("PATCH", "/v1/jobs/a-1", {"priority": 9}),
        ("POST", "/v1/nodes/n0/drain", None),
        ("PUT", "/v1/quotas/ada", {"gpus": 0}),
        ("POST", "/v1/tokens", {"name": "new"}),
        ("DELETE", "/v1/tokens/bob", None),
        ("GET", "/v1/tokens", None),
        ("POST", "/v1/jobs/a-1/reports", {"attempt": 1}),
    ):
        answer = client.http.request(method, path, json=body)
        assert answer.status_code == 401, (method, path, answer.text)
    assert served.digest() == before


def test_users_see_what_their_token_may(client: Client) -> None:
    sign_in(client, "ada")
    first = client.http.get("/").text
    assert "a-1" in first
    assert "b-2" not in first
    assert client.http.get("/jobs/b-2").status_code == 404
    client.http.cookies.clear()
    sign_in(client, "bob")
    assert "a-1" not in client.http.get("/").text
    assert client.http.get("/jobs/a-1").status_code == 404


def test_session_ends_with_its_token_its_time_and_by_signing_out(served: Served, client: Client) -> None:
    sign_in(client, "ada")
    kept = client.http.cookies[COOKIE]
    assert client.http.post("/sign-out", follow_redirects=False).status_code == 303
    assert COOKIE not in client.http.cookies
    client.http.cookies.set(COOKIE, kept, domain="127.0.0.1")
    served.now = NOW + LIVES_S + 1
    assert client.http.get("/v1/me").status_code == 401
    served.now = NOW
    assert client.http.get("/v1/me").status_code == 200
    assert client.ask("root", "DELETE", "/v1/tokens/ada").status_code == 200
    assert client.http.get("/v1/me").status_code == 401


def test_cookie_that_was_changed_is_no_good(client: Client) -> None:
    sign_in(client, "ada")
    hashed, until, signature = client.http.cookies[COOKIE].split(".")
    other = hashed[:-1] + ("0" if hashed[-1] != "0" else "1")
    for forged in (
        f"{hashed}.{int(until) + 1}.{signature}",
        f"{other}.{until}.{signature}",
        f"{hashed}.{until}.{'0' * 64}",
        "token-of-root",
        "",
    ):
        client.http.cookies.clear()
        answer = client.http.get("/v1/me", headers={"Cookie": f"{COOKIE}={forged}"})
        assert answer.status_code == 401, forged


def test_link_signs_in_once(served: Served, client: Client) -> None:
    served.home.token.write_text("token-of-root\n")
    code = make_code(served.home, now=NOW)
    (file,) = (served.home.path / "once").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert code not in file.name
    entered = client.http.get(f"/sign-in?once={code}", follow_redirects=False)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert client.http.get("/v1/me").json()["role"] == "admin"
    client.http.cookies.clear()
    assert client.http.get(f"/sign-in?once={code}").status_code == 401
    assert COOKIE not in client.http.cookies


def test_link_is_over_after_five_minutes(served: Served, client: Client) -> None:
    served.home.token.write_text("token-of-root\n")
    code = make_code(served.home, now=NOW)
    served.now = NOW + GOOD_S
    assert client.http.get(f"/sign-in?once={code}").status_code == 401
    served.now = NOW
    assert client.http.get(f"/sign-in?once={code}").status_code == 401, "what was tried too late is gone"


@pytest.mark.parametrize("code", ["", "x", "../token", "a" * 43, "/" * 43, "%00" * 43])
def test_made_up_code_opens_nothing(served: Served, client: Client, code: str) -> None:
    served.home.token.write_text("token-of-root\n")
    make_code(served.home, now=NOW)
    assert client.http.get("/sign-in", params={"once": code}).status_code == 401
    assert served.home.token.exists()
    assert len(list((served.home.path / "once").iterdir())) == 1


def test_code_that_another_process_is_writing_is_left_alone(served: Served) -> None:
    place = served.home.path / "once"
    place.mkdir()
    (place / ".written.1.part").touch()
    make_code(served.home, now=NOW)
    assert (place / ".written.1.part").exists()


def test_code_used_by_many_at_once_is_good_for_one(served: Served) -> None:
    code = make_code(served.home, now=NOW)
    with ThreadPoolExecutor(8) as pool:
        good = list(pool.map(lambda _: use_code(served.home, code, now=NOW), range(32)))
    assert good.count(True) == 1


def test_codes_that_are_over_are_cleared_away(served: Served) -> None:
    make_code(served.home, now=NOW)
    make_code(served.home, now=NOW + GOOD_S + 1)
    assert len(list((served.home.path / "once").iterdir())) == 1


def test_revoked_administrator_has_no_link(served: Served, client: Client) -> None:
    served.home.token.write_text("token-of-root\n")
    with closing(served.store.tokens()) as tokens:
        tokens.remove("root")
    code = make_code(served.home, now=NOW)
    assert client.http.get(f"/sign-in?once={code}").status_code == 401
    assert COOKIE not in client.http.cookies

"""What jobs wrote and what users upload: shown and unpacked where it belongs, and nowhere else."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from coadapt.executors.node.node_files import file_beneath
from coadapt.model import JobFinished
from tests.unit.server.served import Client, Served, a_submission
from tests.waiting import until

MEDIA = {"Content-Type": "application/x-tar+gzip"}


def _write(served: Served, text: bytes, name: str = "0.out", attempt: int = 1) -> Path:
    path = served.home.keeper / "logs" / f"a-1.{attempt}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


def test_log_is_read_in_parts_that_join_to_the_whole(served: Served, client: Client) -> None:
    text = "".join(f"{n} Grüße ☃\n" for n in range(60_000))
    _write(served, text.encode())
    parts, offset = [], 0
    while True:
        part = client.get("ada", f"/v1/jobs/a-1/logs?offset={offset}").json()
        assert not part["ended"]  # it runs: more may come
        if part["offset"] == offset:
            break
        parts.append(part["text"])
        offset = part["offset"]
    assert "".join(parts) == text
    assert len(parts) > 2
    assert client.get("ada", "/v1/jobs/a-1/logs?offset=-13").json()["text"] == text[-9:]


def test_log_of_an_attempt_that_is_over_has_an_end(served: Served, client: Client) -> None:
    _write(served, b"bye\n", "0.err")
    served.append(JobFinished(job="a-1", attempt=1, outcome="succeeded"))
    assert client.get("ada", "/v1/jobs/a-1/logs?stream=err").json() == {
        "text": "bye\n", "offset": 4, "ended": True, "attempt": 1, "rank": 0,
    }  # fmt: skip
    assert client.get("bob", "/v1/jobs/b-2/logs").json()["ended"] is False


def test_log_of_a_rank_that_does_not_exist_is_refused(served: Served, client: Client) -> None:
    for rank in range(3):
        _write(served, b"", f"{rank}.out")
    assert client.get("ada", "/v1/jobs/a-1/logs?rank=3").status_code == 200  # holds 4, has not written yet
    answer = client.get("ada", "/v1/jobs/a-1/logs?rank=5")
    assert answer.status_code == 404
    assert answer.json()["error"] == "attempt 1 of job a-1 has 4 replicas, ranks 0 to 3; there is no rank 5"
    served.append(JobFinished(job="a-1", attempt=1, outcome="succeeded"))
    assert client.get("ada", "/v1/jobs/a-1/logs?rank=2").status_code == 200
    assert "has 3 replicas" in client.get("ada", "/v1/jobs/a-1/logs?rank=3").json()["error"]
    # nothing is known of an attempt that has not begun
    assert client.get("bob", "/v1/jobs/b-2/logs?rank=5").status_code == 200


def test_links_that_a_job_left_are_not_followed(served: Served, client: Client) -> None:
    secret = served.home.path / "token"
    secret.write_text("the-admins")
    log = _write(served, b"")
    log.unlink()
    log.symlink_to(secret)
    assert client.get("ada", "/v1/jobs/a-1/logs").json()["text"] == ""
    checkpoints = served.home.checkpoints / "a-1"
    checkpoints.symlink_to(served.home.path)
    assert client.get("ada", "/v1/jobs/a-1/checkpoints").json() == {"checkpoints": []}


def test_pipe_in_place_of_a_log_keeps_nobody_waiting(served: Served, client: Client) -> None:
    log = _write(served, b"")
    log.unlink()
    os.mkfifo(log)
    assert client.get("ada", "/v1/jobs/a-1/logs").json()["text"] == ""


@pytest.mark.parametrize("parts", [("..", "x"), ("a", "..", "x"), ("a/../../x",), ("",), (".",), ("a\0",)])
def test_nothing_above_is_opened(tmp_path: Path, parts: tuple[str, ...]) -> None:
    (tmp_path / "x").write_text("secret")
    (tmp_path / "root" / "a").mkdir(parents=True)
    with pytest.raises(FileNotFoundError), file_beneath(tmp_path / "root", *parts):
        pass


def test_why_offers_a_checkpoint_only_where_there_is_one(served: Served, client: Client) -> None:
    def offered() -> str:
        return str(client.get("ada", "/v1/jobs/a-1/why").json()["next"])

    served.append(JobFinished(job="a-1", attempt=1, outcome="failed", kind="exception", reason="no"))
    assert offered() == "Run it again with 'coadapt retry a-1'. It starts over: it has no checkpoint."
    directory = served.home.checkpoints / "a-1"
    directory.mkdir(parents=True)
    for name in ("attempt", "step-10.pt.tmp"):  # nothing can go on from these
        (directory / name).write_bytes(b"1")
    assert offered() == "Run it again with 'coadapt retry a-1'. It starts over: it has no checkpoint."
    (directory / "step-10.pt").write_bytes(b"1")
    assert offered() == "Run it again with 'coadapt retry a-1'. It continues from its last checkpoint."


def test_checkpoints_are_listed_newest_first(served: Served, client: Client) -> None:
    directory = served.home.checkpoints / "a-1"
    directory.mkdir(parents=True)
    for step in (10, 20):
        (directory / f"step-{step}.pt").write_bytes(b"x" * step)
        os.utime(directory / f"step-{step}.pt", (step, step))
    (directory / "step-30.pt.tmp").write_bytes(b"")
    os.utime(directory / "step-30.pt.tmp", (5, 5))
    for beside in ("attempt", "history.jsonl"):  # nothing can go on from these
        (directory / beside).write_bytes(b"1")
    lines = client.get("ada", "/v1/jobs/a-1/checkpoints").json()["checkpoints"]
    assert [(line["step"], line["bytes"], line["whole"]) for line in lines] == [
        (20, 20, True),
        (10, 10, True),
        (30, 0, False),
    ]


def _packed(*members: tuple[str, bytes | str]) -> bytes:
    """Files, or links where the content is a string."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _upload(client: Client, data: bytes, sha: str | None = None) -> Any:
    name = sha or hashlib.sha256(data).hexdigest()
    return client.ask("ada", "PUT", f"/v1/code/{name}", content=data, headers=MEDIA), name


def test_code_is_unpacked_and_may_be_named_by_jobs(served: Served, client: Client) -> None:
    data = _packed(("train.py", b"print()"), ("lib/a.py", b""))
    answer, sha = _upload(client, data)
    assert answer.status_code == 201
    assert (served.home.code / sha / "train.py").read_bytes() == b"print()"
    assert _upload(client, data)[0].status_code == 201
    assert client.post("ada", "/v1/jobs", a_submission(code=sha)).status_code == 201
    # the hash in short: it is one column of a table
    until(lambda: [each.subject for each in served.audit() if each.action == "upload"] == [sha[:12]])


@pytest.mark.parametrize(
    "data",
    [
        _packed(("../evil", b"x")),
        _packed(("link", "../../.."), ("link/evil", b"x")),
        _packed(("link", "/etc/passwd")),
        b"not an archive",
        gzip.compress(b"neither"),
        _packed(("a", b"x" * 10_000))[:60],
    ],
    ids=range(6),
)
def test_archive_that_means_no_good_leaves_nothing_behind(
    served: Served, client: Client, data: bytes
) -> None:
    before = served.digest()
    answer, _ = _upload(client, data)
    assert answer.status_code == 422, answer.text
    assert str(served.home.path) not in answer.text
    assert served.digest() == before


def _archive(*members: tuple[str, bytes, str]) -> bytes:
    """Members of a type each: (name, type, target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            data = target.encode() if kind == tarfile.REGTYPE else b""
            info.size, info.mode = len(data), 0o755 if kind == tarfile.DIRTYPE else 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _escaping(outside: Path) -> bytes:
    """CVE-2025-4517: links whose resolution is longer than a path may be, so that it is given up half way."""
    part, steps, path = "d" * 247, "abcdefghijklmnop", ""
    members: list[tuple[str, bytes, str]] = []
    for step in steps:
        members += [(path + part, tarfile.DIRTYPE, ""), (path + step, tarfile.SYMTYPE, part)]
        path += part + "/"
    link = "/".join(steps) + "/" + "l" * 254
    members += [
        (link, tarfile.SYMTYPE, "../" * len(steps)),
        ("escape", tarfile.SYMTYPE, link + "/.." * 15 + str(outside.parent)),
        ("hard", tarfile.LNKTYPE, f"escape/{outside.name}"),
        ("hard", tarfile.REGTYPE, "overwritten"),
    ]
    return _archive(*members)


def test_archive_cannot_write_outside_by_a_path_that_is_too_long(
    served: Served, client: Client, tmp_path: Path
) -> None:
    outside = tmp_path / "precious"
    outside.write_text("untouched")
    before = served.digest()
    answer, _ = _upload(client, _escaping(outside))
    assert answer.status_code == 422, answer.text
    assert outside.read_text() == "untouched"
    assert served.digest() == before


SYM, HARD, FILE, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.REGTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    ("members", "said"),
    [
        # from a link to the root up again: inside by its words, outside in truth
        ([("a/b/up", SYM, "../.."), ("out", SYM, "a/b/up/..")], "link to the directory itself"),
        ([("a/b/up", SYM, ".."), ("out", SYM, "a/b/up/../..")], "leads outside"),
        ([("root", SYM, ".")], "link to the directory itself"),
        ([("there", SYM, "folder"), ("there/x", FILE, "x")], "below a link"),
        ([("there", SYM, "x"), ("there", FILE, "x")], "twice"),
        ([("hard", HARD, "nothing")], "hard link"),
        ([("there", SYM, "x"), ("hard", HARD, "there")], "hard link"),
        ([("a\nb", FILE, "x")], "control characters"),
        ([("a\x1b[2Jb", FILE, "x")], "control characters"),
        ([("a\u202eb", FILE, "x")], "control characters"),
        ([("x", SYM, "a\x1b]0;b")], "control characters"),
        ([("/".join("d" * 65), FILE, "x")], "directories deep"),
        ([("n" * 256, FILE, "x")], "more than 1024 bytes"),
        ([("/".join(["n" * 200] * 6), FILE, "x")], "more than 1024 bytes"),
        ([("/absolute", FILE, "x")], "not a path below"),
    ],
    ids=range(15),
)
def test_archive_with_a_name_or_link_that_could_lead_astray_is_refused(
    served: Served, client: Client, members: list[tuple[str, bytes, str]], said: str
) -> None:
    before = served.digest()
    answer, _ = _upload(client, _archive(*members))
    assert answer.status_code == 422, answer.text
    assert said in answer.text
    assert served.digest() == before


def test_archive_with_links_that_stay_inside_is_unpacked(served: Served, client: Client) -> None:
    data = _archive(
        ("lib", FOLDER, ""),
        ("lib/a.py", FILE, "a"),
        ("lib/b/c.py", SYM, "../a.py"),
        ("latest", SYM, "lib"),
        ("nested", SYM, "latest/b"),
        ("copy.py", HARD, "lib/a.py"),
    )
    answer, sha = _upload(client, data)
    assert answer.status_code == 201, answer.text
    for name in ("lib/b/c.py", "nested/c.py", "copy.py"):
        assert (served.home.code / sha / name).read_text() == "a"


def test_code_under_a_wrong_name_is_refused(served: Served, client: Client) -> None:
    before = served.digest()
    assert _upload(client, _packed(("a", b"x")), "0" * 64)[0].status_code == 422
    assert _upload(client, _packed(("a", b"x")), "A" * 64)[0].status_code == 422
    assert served.digest() == before


def test_code_without_its_archive_is_received_again_where_it_is_shipped(tmp_path: Path) -> None:
    """It came while jobs ran on this machine only: machines that join could not fetch it."""
    house = Served(tmp_path, executor="joined")
    data = _packed(("train.py", b"print()"))
    with house.client() as client:
        answer, sha = _upload(client, data)
        archive = house.home.code / f"{sha}.tar.gz"
        assert (answer.status_code, archive.read_bytes()) == (201, data)
        archive.unlink()
        assert _upload(client, data)[0].status_code == 201
        assert archive.read_bytes() == data
    house.close()
    assert sorted(path.name for path in house.home.code.iterdir()) == [sha, archive.name]

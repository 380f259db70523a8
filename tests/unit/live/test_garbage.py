"""What ``coadapt gc`` removes, what it leaves, and what a crash in the middle of it does."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.live import garbage
from coadapt.live.garbage import ENDED_LOG_BYTES, Item, collect, collect_garbage, collecting, garbage_plan
from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    CancelRequested,
    JobSubmitted,
    NodeJoined,
    Placement,
    Record,
    RetryRequested,
    Slot,
    StartJob,
)
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions
from tests.builders import a_cluster, a_job

DAY = 86400.0
NOW = time.time()


def sha(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def a_home(tmp_path: Path, *events: tuple[float, AnyEvent], **options: object) -> Home:
    """A home with these records, the first number of each being days before now."""
    home = Home(tmp_path / "home")
    home.make()
    home.write_options(replace(ServeOptions(), **options))
    log = open_store(home.store(home.read_options())).log()
    log.append([Record(seq=n, at=NOW - days * DAY, event=event) for n, (days, event) in enumerate(events)])
    log.close()
    return home


def submitted(job: str, code: str) -> JobSubmitted:
    return JobSubmitted(job=job, spec=replace(a_job(1), code=sha(code)))


def filled(path: Path, days: float, size: int = 5000) -> Path:
    path.mkdir(parents=True)
    (path / "file").write_bytes(b"x" * size)
    for each in (path / "file", path):
        os.utime(each, (NOW - days * DAY, NOW - days * DAY))
    return path


def names(items: list[Item]) -> set[tuple[str, str]]:
    return {(item.kind, item.path.name) for item in items}


def test_code_goes_after_its_last_job_and_orphans_after_a_day(tmp_path: Path) -> None:
    home = a_home(
        tmp_path,
        (60, submitted("live", "shared")),
        (60, submitted("old", "shared")),
        (60, submitted("gone", "gone")),
        (50, CancelRequested(job="old")),
        (50, CancelRequested(job="gone")),
        (9, submitted("recent", "recent")),
        (8, CancelRequested(job="recent")),
        retain_code_days=30.0,
    )
    for name, days in (("shared", 60), ("gone", 60), ("recent", 9), ("orphan", 2), ("uploaded", 0.5)):
        filled(home.code / sha(name), days)
    filled(home.code / ".abc.part", 2)
    filled(home.code / sha("again"), 0.01)
    assert names(garbage_plan(home).items) == {
        ("code", sha("gone")),
        ("code", sha("orphan")),
        ("code", ".abc.part"),
    }
    inbox = open_store(home.store(home.read_options())).inbox()
    inbox.put(submitted("waits", "orphan"))
    inbox.close()
    done = collect_garbage(home)
    assert done.items == 2
    assert done.bytes >= 10_000
    assert sorted(path.name for path in home.code.iterdir()) == sorted(
        map(sha, ("shared", "recent", "orphan", "uploaded", "again"))
    )
    assert list(home.trash.iterdir()) == []


def test_code_that_is_uploaded_again_after_the_plan_stays(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    path = filled(home.code / sha("orphan"), 2)
    found = garbage_plan(home)
    assert names(found.items) == {("code", sha("orphan"))}
    os.utime(path)
    assert collect(home, found).items == 0
    assert path.is_dir()


@pytest.mark.parametrize("keep", [None, 20.0])
def test_checkpoints_stay_unless_a_time_is_set_and_never_go_while_the_job_lives(
    keep: float | None, tmp_path: Path
) -> None:
    home = a_home(
        tmp_path,
        (60, submitted("live", "c")),
        (60, submitted("old", "c")),
        (50, CancelRequested(job="old")),
        (45, submitted("recent", "c")),
        (5, CancelRequested(job="recent")),
        retain_checkpoints_days=keep,
    )
    for name in ("live", "old", "recent", "unknown"):
        filled(home.checkpoints / name, 60)
    found = garbage_plan(home)
    gone = set() if keep is None else {("checkpoints", "old"), ("checkpoints", "unknown")}
    assert names(found.items) == gone
    assert (found.kept_checkpoints > 0) == (keep is None)


def test_output_is_shortened_after_the_end_and_goes_when_it_is_old(tmp_path: Path) -> None:
    here = Placement(slots=(Slot(node="n0", replicas=1),))
    start = ActionsIssued(decision=0, actions=(StartJob(id=1, job="runs", attempt=2, placement=here),))
    home = a_home(
        tmp_path,
        (60, NodeJoined(node=a_cluster("1x2").nodes[0])),
        (60, submitted("runs", "c")),
        (1, start),
        (60 - 60, submitted("late", "c")),
        retain_logs_days=14.0,
    )
    logs = home.keeper / "logs"
    long = ENDED_LOG_BYTES + (1 << 20)
    filled(logs / "runs.1", 1, long)
    filled(logs / "runs.2", 1, long)
    filled(logs / "unknown.1", 1, long)
    filled(logs / "unknown.2", 20)
    found = garbage_plan(home)
    assert {(item.path.parent.name, item.path.name) for item in found.items} == {
        ("runs.1", "file"),
        ("logs", "unknown.2"),
    }
    collect(home, found)
    file = logs / "runs.1" / "file"
    assert file.stat().st_blocks * 512 <= ENDED_LOG_BYTES
    assert file.stat().st_size in (0, long), "offsets stay valid, or the file system has no holes"
    assert (logs / "runs.2" / "file").stat().st_blocks * 512 >= long
    assert not (logs / "unknown.2").exists()
    assert garbage_plan(home).items == []


def test_crash_in_the_middle_leaves_trash_that_the_next_run_empties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = a_home(tmp_path)
    for name in ("a", "b"):
        path = filled(home.code / sha(name), 2)
        (path / "sealed").mkdir()
        (path / "sealed").chmod(0o500)
        os.utime(path, (NOW - 2 * DAY, NOW - 2 * DAY))

    def crash(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(garbage, "_delete", crash)
        with pytest.raises(KeyboardInterrupt):
            collect_garbage(home)
    left = [*home.code.iterdir(), *home.trash.iterdir()]
    assert len(left) == 2
    assert all((path / "file").is_file() for path in left), "half of a directory is gone"
    (moved,) = home.trash.iterdir()
    assert ("trash", moved.name) in names(garbage_plan(home).items)
    for path in home.code.iterdir():
        os.utime(path, (NOW - 2 * DAY, NOW - 2 * DAY))
    assert collect_garbage(home).items == 2
    assert (list(home.code.iterdir()), list(home.trash.iterdir())) == ([], [])


def test_one_collector_at_a_time(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    with collecting(home), pytest.raises(InputError, match="already running"):
        collect_garbage(home)


def packed(home: Home, name: str, days: float) -> Path:
    """The archive of some code, as agents on other machines fetch it."""
    path = home.code / f"{sha(name)}.tar.gz"
    path.write_bytes(b"x" * 5000)
    os.utime(path, (NOW - days * DAY, NOW - days * DAY))
    return path


def test_archives_for_other_machines_stay_and_go_with_their_code(tmp_path: Path) -> None:
    home = a_home(
        tmp_path,
        (60, submitted("live", "live")),
        (60, submitted("gone", "gone")),
        (50, CancelRequested(job="gone")),
        retain_code_days=30.0,
    )
    for name, days in (("live", 60), ("gone", 60), ("orphan", 2), ("again", 2)):
        filled(home.code / sha(name), days)
        packed(home, name, days)
    os.utime(home.code / sha("again"))  # uploaded again
    collect_garbage(home)
    assert sorted(path.name for path in home.code.iterdir()) == sorted(
        [sha("live"), f"{sha('live')}.tar.gz", sha("again"), f"{sha('again')}.tar.gz"]
    )


def test_job_that_is_to_be_retried_keeps_code_and_checkpoints_before_the_controller_knows(
    tmp_path: Path,
) -> None:
    home = a_home(
        tmp_path,
        (60, submitted("job", "code")),
        (50, CancelRequested(job="job")),
        retain_code_days=30.0,
        retain_checkpoints_days=30.0,
    )
    filled(home.code / sha("code"), 60)
    filled(home.checkpoints / "job", 60)
    assert len(garbage_plan(home).items) == 2
    inbox = open_store(home.store(home.read_options())).inbox()
    inbox.put(RetryRequested(job="job"))
    inbox.close()
    assert garbage_plan(home).items == []


def test_copies_of_accounts_go_after_the_code(tmp_path: Path) -> None:
    """Each account that jobs run as has its own copy (``--run-as submitter``)."""
    home = a_home(
        tmp_path,
        (60, submitted("live", "live")),
        (60, submitted("gone", "gone")),
        (50, CancelRequested(job="gone")),
        retain_code_days=30.0,
    )
    for name in ("live", "gone"):
        filled(home.code / sha(name), 60)
        filled(home.path / "accounts" / "ada" / "code" / sha(name), 60)
    assert collect_garbage(home).items == 1
    assert collect_garbage(home).items == 1
    assert collect_garbage(home).items == 0
    assert [path.name for path in home.path.glob("accounts/ada/code/*")] == [sha("live")]


@pytest.mark.parametrize("taken", [False, True])
def test_job_that_is_retried_after_the_plan_keeps_everything(tmp_path: Path, taken: bool) -> None:
    """The request is in the inbox, or the controller has taken it."""
    home = a_home(
        tmp_path,
        (60, submitted("old", "old")),
        (60, submitted("other", "other")),
        (50, CancelRequested(job="old")),
        (50, CancelRequested(job="other")),
        retain_code_days=30.0,
        retain_checkpoints_days=30.0,
    )
    for name in ("old", "other"):
        for place in (home.checkpoints / name, home.work / name, home.code / sha(name)):
            filled(place, 60)
    found = garbage_plan(home)
    assert len(found.items) == 6
    store = open_store(home.store(home.read_options()))
    if taken:
        log = store.log()
        log.append([Record(seq=log.last() + 1, at=NOW, event=RetryRequested(job="old"))])
        log.close()
    else:
        inbox = store.inbox()
        for _ in range(1001):
            inbox.put(CancelRequested(job="other"))
        inbox.put(RetryRequested(job="old"))
        inbox.close()
    assert collect(home, found).items == 3
    left = [path for place in (home.checkpoints, home.work, home.code) for path in place.iterdir()]
    assert left == [home.checkpoints / "old", home.work / "old", home.code / sha("old")]


def test_nothing_can_be_asked_for_between_the_last_look_and_the_removal(tmp_path: Path) -> None:
    home = a_home(
        tmp_path,
        (60, submitted("old", "old")),
        (50, CancelRequested(job="old")),
        retain_checkpoints_days=30.0,
    )
    path = filled(home.checkpoints / "old", 60)
    (item,) = [each for each in garbage_plan(home).items if each.kind == "checkpoints"]
    store = open_store(home.store(home.read_options()))
    done = threading.Event()

    def retry() -> None:
        with closing(store.inbox()) as inbox:
            inbox.put(RetryRequested(job="old"))
        done.set()

    asking = threading.Thread(target=retry)
    with closing(garbage._Present(store)) as present:
        with present.unused(item) as unused:
            assert unused
            asking.start()
            path.rename(tmp_path / "moved")
            assert not done.is_set()
        asking.join()
        with present.unused(item) as unused:
            assert not unused


def test_working_directories_stay_with_their_job_and_go_after_it(tmp_path: Path) -> None:
    home = a_home(
        tmp_path,
        (60, submitted("live", "c")),
        (60, submitted("old", "c")),
        (50, CancelRequested(job="old")),
        (9, submitted("recent", "c")),
        (8, CancelRequested(job="recent")),
        retain_code_days=30.0,
    )
    for name in ("live", "old", "recent", "unknown", ".x.part"):
        filled(home.work / name, 60)
    filled(home.work / "new", 0.5)
    assert names(garbage_plan(home).items) == {("work", "old"), ("work", "unknown"), ("work", ".x.part")}

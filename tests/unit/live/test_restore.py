"""Restores without processes: what is refused, what becomes of jobs, and that a failed one leaves nothing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from coadapt.errors import InputError
from coadapt.executors.node.journal import Journal
from coadapt.live.backup import back_up
from coadapt.live.restore import restore_home, restore_lines
from coadapt.live.serve_process import check_fence, retentions
from coadapt.model import (
    ActionsIssued,
    ClusterRestored,
    JobStarted,
    JobSubmitted,
    NodeJoined,
    Placement,
    Record,
    ResumeRequested,
    Slot,
    StartJob,
)
from coadapt.store import open_store
from coadapt.store._sql import COPIED, POSTGRES
from coadapt.store.home import Home
from coadapt.store.home_archive import new_archive, read_header
from coadapt.wire.agent import Variable
from coadapt.wire.serve_options import ServeOptions
from tests.builders import a_cluster, a_job

SHA = hashlib.sha256(b"code").hexdigest()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """One job runs and has a checkpoint, one waits with code, one is in the inbox."""
    home = Home(tmp_path / "old")
    home.make()
    prices = tmp_path / "prices.toml"
    prices.write_text("t4 = 1.0\n")
    home.write_options(ServeOptions(virtual="1x2:t4", prices=str(prices), retain_days=30.0))
    (home.path / "token").write_text("secret\n")
    (home.path / "token").chmod(0o600)
    (home.path / "job_key").write_text("00" * 32)
    (home.path / "controller.log").write_text("much")
    (home.code / SHA).mkdir()
    (home.code / SHA / "train.py").write_text("pass\n")
    here = Placement(slots=(Slot(node="n0", replicas=1),))
    coded = msgspec.structs.replace(a_job(1), code=SHA)
    store = open_store(home.store(home.read_options()))
    log, inbox = store.log(), store.inbox()
    events = (
        NodeJoined(node=a_cluster("1x2").nodes[0]),
        JobSubmitted(job="runs", spec=a_job(1)),
        JobSubmitted(job="waits", spec=coded),
        ActionsIssued(decision=0, actions=(StartJob(id=1, job="runs", attempt=1, placement=here),)),
        JobStarted(job="runs", attempt=1),
    )
    log.append([Record(seq=n, at=100.0 + n, event=event) for n, event in enumerate(events)])
    log.bind(home.identity)
    inbox.put(JobSubmitted(job="late", spec=coded))
    inbox.put(ResumeRequested(job="late"))
    log.close()
    inbox.close()
    (home.checkpoints / "runs").mkdir()
    (home.checkpoints / "runs" / "step-1").write_bytes(b"weights")
    (home.checkpoints / "runs" / ".step-2.part").write_bytes(b"half")
    return home


def backed_up(home: Home, **options: object) -> Path:
    path = home.path.parent / "backup"
    back_up(home, path, quiet=True, **options)  # type: ignore[arg-type]
    return path


def test_backup_holds_what_a_restore_needs_and_nothing_of_the_old_processes(home: Home) -> None:
    path = backed_up(home)
    new = Home(home.path.parent / "new")
    found = restore_home(path, new, quiet=True)
    assert (found.waiting, found.from_start, found.continuing) == (["waits", "late"], ["runs"], [])
    assert (new.path / "token").read_text() == "secret\n"
    assert (new.code / SHA / "train.py").read_text() == "pass\n"
    assert not {"job_key", "id", "controller.log", "backup"} & {each.name for each in new.path.iterdir()}
    options = new.read_options()
    assert (options.virtual, options.retain_days, options.store) == ("1x2:t4", 30.0, "store.db")
    assert Path(options.prices).read_text() == "t4 = 1.0\n"
    assert options.prices.startswith(str(new.path))
    log = open_store(new.store(options)).log()
    *_, last = log.read()
    assert isinstance(last.event, ClusterRestored)
    assert log.identity != read_header(path).store
    log.bind(new.identity)
    log.close()
    assert f"{home.path} is fenced" in "\n".join(restore_lines(found, new))
    with pytest.raises(InputError, match="must not be served any more: its jobs were restored to"):
        check_fence(home)
    check_fence(new)


def test_checkpoints_come_with_the_backup_or_from_a_directory(home: Home) -> None:
    path = backed_up(home, checkpoints="include")
    new = Home(home.path.parent / "new")
    assert restore_home(path, new, quiet=True).continuing == ["runs"]
    assert [each.name for each in (new.checkpoints / "runs").iterdir()] == ["step-1"]


def test_damaged_checkpoint_is_not_copied_and_its_job_may_be_held(home: Home) -> None:
    path = backed_up(home)
    rescued = home.path.parent / "rescued"
    (rescued / "runs").mkdir(parents=True)
    (rescued / "runs" / "step-1").write_bytes(b"damaged"[:7])
    new = Home(home.path.parent / "new")
    found = restore_home(path, new, checkpoints=rescued, missing_checkpoints="hold", quiet=True)
    assert (found.refused_files, found.held, found.from_start) == (["runs/step-1"], ["runs"], [])
    assert "Paused until 'coadapt resume JOB': runs." in restore_lines(found, new)


def test_hold_pauses_every_job_also_those_that_wait_in_the_inbox(home: Home) -> None:
    path, new = backed_up(home), Home(home.path.parent / "new")
    found = restore_home(path, new, hold=True, quiet=True)
    assert sorted(found.held) == ["late", "runs", "waits"]
    assert not home.fence.exists()
    store = open_store(new.store(new.read_options()))
    log, inbox = store.log(), store.inbox()
    from coadapt.live.backup import folded

    state = folded(log)
    for number, (_, event) in enumerate(inbox.take()):
        state.apply(Record(seq=state.seq + 1, at=state.now + number, event=event))
    assert all(job.on_hold for job in state.jobs.values())
    log.close()
    inbox.close()


def test_what_cannot_be_restored_is_one_line_and_leaves_nothing(home: Home, tmp_path: Path) -> None:
    path, new = backed_up(home), Home(tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="is not empty"):
        restore_home(path, Home(tmp_path / "full"), quiet=True)
    with pytest.raises(InputError, match="is not empty"):
        restore_home(path, home, quiet=True)
    header = read_header(path)
    newer = tmp_path / "newer"
    with new_archive(newer, msgspec.structs.replace(header, schema=99)) as archive:
        archive.finish((), (), ())
    with pytest.raises(InputError, match="store of schema 99"):
        restore_home(newer, new, quiet=True)
    broken = tmp_path / "broken"
    with new_archive(broken, header) as archive:
        archive.add_bytes("store.db", b"SQLite format 3\0" + os.urandom(5000))
        archive.add_bytes("serve.json", (home.path / "serve.json").read_bytes())
        archive.finish((), (), ())
    with pytest.raises(InputError, match="cannot be used") as error:
        restore_home(broken, new, quiet=True)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="no such directory"):
        restore_home(path, new, checkpoints=tmp_path / "nowhere", quiet=True)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="damaged"):
        restore_home(path, new, quiet=True)
    assert not new.path.exists()
    assert [each.name for each in tmp_path.iterdir() if "restore" in each.name] == []
    assert not home.fence.exists()


def test_backup_names_what_is_wrong(home: Home, tmp_path: Path) -> None:
    backed_up(home)
    with pytest.raises(InputError, match="exists"):
        backed_up(home)
    with pytest.raises(InputError, match="there is no directory"):
        back_up(home, tmp_path / "nowhere" / "file")
    with pytest.raises(InputError, match="is not the home of a cluster"):
        back_up(Home(tmp_path / "nothing"), tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_every_table_but_the_lease_is_copied() -> None:
    tables = {line.split()[5] for line in POSTGRES.split(";") if "CREATE TABLE" in line}
    assert tables - {"meta", "lease"} == set(COPIED)


def test_retention_is_parsed_for_each_kind() -> None:
    assert retentions(["30d", "logs=12h", "checkpoints=forever"]) == {
        "retain_days": 30.0,
        "retain_logs_days": 0.5,
        "retain_checkpoints_days": None,
    }
    for wrong in ("x=3d", "logs=1m", "logs=", "=3d", "10s"):
        with pytest.raises(InputError):
            retentions([wrong])


def test_archive_of_code_for_other_machines_is_restored(home: Home) -> None:
    (home.code / f"{SHA}.tar.gz").write_bytes(b"packed")
    new = Home(home.path.parent / "new")
    restore_home(backed_up(home), new, quiet=True)
    assert (new.code / f"{SHA}.tar.gz").read_bytes() == b"packed"


@pytest.mark.parametrize("checkpoints", ["list", "include"])
def test_names_that_are_not_utf_8_are_backed_up(home: Home, checkpoints: str) -> None:
    odd = os.fsdecode(b"caf\xe9")
    (home.code / SHA / odd).write_text("pass\n")
    (home.code / SHA / "link").symlink_to(odd)
    (home.checkpoints / "runs" / odd).write_bytes(b"weights")
    new = Home(home.path.parent / "new")
    restore_home(backed_up(home, checkpoints=checkpoints), new, checkpoints=home.checkpoints, quiet=True)
    assert (new.code / SHA / "link").read_text() == "pass\n"
    assert (new.checkpoints / "runs" / odd).read_bytes() == b"weights"


def test_jobs_are_not_restored_twice(home: Home) -> None:
    path, new, another = backed_up(home), Home(home.path.parent / "new"), Home(home.path.parent / "another")
    restore_home(path, new, quiet=True)
    with pytest.raises(
        InputError, match=f"its jobs were restored to {new.path} on .*; both would run"
    ) as refused:
        restore_home(path, another, quiet=True)
    assert str(home.fence) in str(refused.value)
    restore_home(path, Home(home.path.parent / "drill"), hold=True, quiet=True)
    home.fence.unlink()
    restore_home(path, another, quiet=True)


def test_restore_is_refused_while_jobs_run_on_joined_machines(home: Home) -> None:
    """The hub goes on after the controller was stopped, and so do its jobs."""
    path, new = backed_up(home), Home(home.path.parent / "new")
    home.hub.mkdir(exist_ok=True)
    with (home.hub / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="the cluster of this backup is running in"):
            restore_home(path, new, quiet=True)
    restore_home(path, new, quiet=True)


def test_restore_is_refused_while_a_process_of_a_killed_keeper_lives(home: Home) -> None:
    """Only the next keeper of the old home, or 'down', would end it; the restored cluster would start the same job."""
    path, new = backed_up(home), Home(home.path.parent / "new")
    with closing(Journal(home.keeper / "keeper.db")) as journal:
        start = StartJob(id=1, job="a", attempt=1, placement=Placement(slots=(Slot(node="n0", replicas=1),)))
        ((_, token),) = journal.accept([start])
    with subprocess.Popen(["sleep", "600"], env={**os.environ, Variable.TOKEN: token}) as left:
        try:
            with pytest.raises(
                InputError, match=r"^1 process of a job of the cluster of this backup in .* 'coadapt down"
            ):
                restore_home(path, new, quiet=True)
        finally:
            left.kill()
    restore_home(path, new, quiet=True)


def test_links_to_the_outside_that_a_job_made_do_not_end_the_backup(home: Home) -> None:
    """A job runs in the directory of its code, and may leave there what no upload may hold."""
    outside = {"absolute": "/etc/passwd", "above": "../../token", "hidden": "here/../../token"}
    (home.code / SHA / "sub").mkdir()
    (home.code / SHA / "here").symlink_to("sub")
    (home.code / SHA / "fine").symlink_to("train.py")
    for name, target in outside.items():
        (home.code / SHA / name).symlink_to(target)
    new = Home(home.path.parent / "new")
    restore_home(backed_up(home), new, quiet=True)
    assert (new.code / SHA / "fine").read_text() == "pass\n"
    assert not {*outside} & {each.name for each in (new.code / SHA).iterdir()}


def test_restored_cluster_has_a_hub_of_its_own(home: Home) -> None:
    """One that was bound to the log of the old cluster refused every controller of the new one."""
    where = home.path / "store.db"
    with closing(sqlite3.connect(where)) as rows, rows:
        rows.execute("CREATE TABLE hub_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        rows.execute("INSERT INTO hub_meta VALUES ('log', 'the old one')")
    new = Home(home.path.parent / "new")
    restore_home(backed_up(home), new, quiet=True)
    with closing(sqlite3.connect(new.path / "store.db")) as rows:
        assert rows.execute("SELECT name FROM sqlite_master WHERE name LIKE 'hub%'").fetchall() == []

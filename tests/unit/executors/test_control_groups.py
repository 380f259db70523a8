"""Control groups on trees of files that stand for the kernel's: what is written where, for both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.executors.node import control_groups
from coadapt.executors.node.control_groups import (
    Base,
    ControlGroups,
    Hierarchy,
    bases,
    grouped,
    hierarchies,
    kill_all,
    make_base,
    note_base,
)
from coadapt.wire.node_messages import Limits

V2 = ("cgroup.procs", "cgroup.kill", "cgroup.events", "cgroup.subtree_control", "memory.max", "cpu.max")
MOUNTS = """\
30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/abc /sys/fs/cgroup/memory rw shared:12 - cgroup cgroup rw,memory
34 30 0:30 /elsewhere /sys/fs/cgroup/freezer rw shared:13 - cgroup cgroup rw,freezer
"""
OWN = "5:freezer:/\n4:memory:/docker/abc/inner\n3:cpu,cpuacct:/a\n1:name=systemd:/a\n0::/a/serve\n"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A group of version 2 with the files that the kernel makes in it."""
    path = tmp_path / "unified" / "own"
    path.mkdir(parents=True)
    fill(path)
    return path


def fill(path: Path) -> None:
    for name in V2:
        (path / name).touch()
    (path / "cgroup.events").write_text("populated 0\nfrozen 0\n")


def make(path: Path) -> None:
    """As the kernel does: a new group has its files at once."""
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir()
            fill(each)


@pytest.fixture
def groups(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ControlGroups:
    monkeypatch.setattr(control_groups, "_write", offered)
    monkeypatch.setattr(control_groups, "_remove", remove)
    base = make_base(tmp_path / "keeper", [Hierarchy("v2", frozenset(), own)], make=make)
    assert base is not None
    return ControlGroups(base, make=make)


def offered(path: Path, text: str) -> None:
    """Writes as the kernel does: enabled controllers add up."""
    if path.name == "cgroup.subtree_control":
        text = " ".join({*path.read_text().split(), text.removeprefix("+")})
    path.write_text(text)


def remove(path: Path) -> None:
    """The kernel removes a group with its files."""
    for each in sorted(path.rglob("*"), reverse=True):
        if each.is_dir():
            each.rmdir()
        else:
            each.unlink()
    if path.is_dir():
        path.rmdir()


def test_hierarchies_are_found_where_they_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    (tmp_path / "own").write_text(OWN)
    found = hierarchies(tmp_path / "mounts", tmp_path / "own")
    assert found == [
        Hierarchy("v2", frozenset(), Path("/sys/fs/cgroup/unified/a/serve")),
        Hierarchy("v1", frozenset({"cpu", "cpuacct"}), Path("/sys/fs/cgroup/cpu,cpuacct/a")),
        Hierarchy("v1", frozenset({"memory"}), Path("/sys/fs/cgroup/memory/inner")),
    ]
    assert hierarchies(tmp_path / "none", tmp_path / "own") == []


def test_member_of_version_2_joins_one_group_with_its_limits(groups: ControlGroups) -> None:
    assert groups.base.kind == "v2"
    assert set(groups.base.controllers) == {"memory", "cpu"}
    limits = Limits(cpus=1.5, memory_bytes=2e9)
    files = groups.join("token", "m0", limits)
    member = groups.path / "token" / "m0"
    assert files == (str(member / "cgroup.procs"),)
    assert (member / "memory.max").read_text() == "2000000000"
    assert (member / "cpu.max").read_text() == "150000 100000"
    assert set((groups.path / "token" / "cgroup.subtree_control").read_text().split()) == {"memory", "cpu"}
    assert groups.join("token", "m1", Limits()) == (str(groups.path / "token" / "m1" / "cgroup.procs"),)
    assert (groups.path / "token" / "m1" / "memory.max").read_text() == ""


def test_version_2_is_killed_by_its_own_file(groups: ControlGroups) -> None:
    groups.join("token", "m0", Limits())
    attempt = groups.path / "token"
    (attempt / "m0" / "cgroup.procs").write_text("11\n12\n")
    (attempt / "cgroup.events").write_text("populated 1\n")
    assert groups.pids("token") == {11, 12}
    assert groups.populated("token")
    groups.kill("token", "m0")
    assert (attempt / "m0" / "cgroup.kill").read_text() == "1"
    assert (attempt / "cgroup.kill").read_text() == ""
    groups.kill("token")
    assert (attempt / "cgroup.kill").read_text() == "1"
    (attempt / "cgroup.events").write_text("populated 0\n")
    assert not groups.populated("token")
    groups.remove("token")
    assert not attempt.exists()


def test_kill_for_lack_of_memory_is_known_by_its_group(groups: ControlGroups) -> None:
    groups.join("token", "m0", Limits(memory_bytes=1.0))
    events = groups.path / "token" / "m0" / "memory.events"
    events.write_text("low 0\noom 0\noom_kill 0\n")
    assert not groups.out_of_memory("token", "m0")
    events.write_text("low 0\noom 1\noom_kill 1\n")
    assert groups.out_of_memory("token", "m0")


def test_limits_of_version_1_are_in_hierarchies_of_their_own(tmp_path: Path) -> None:
    controllers = {name: str(tmp_path / name / "base") for name in ("memory", "cpu")}
    base = Base(path=str(tmp_path / "freezer" / "base"), kind="v1", controllers=controllers)
    groups = ControlGroups(base)
    files = groups.join("t", "m0", Limits(cpus=2, memory_bytes=1000))
    assert files == tuple(
        str(tmp_path / name / "base" / "t" / "m0" / "cgroup.procs") for name in ("freezer", "memory", "cpu")
    )
    place = tmp_path / "memory" / "base" / "t" / "m0"
    assert (place / "memory.limit_in_bytes").read_text() == "1000"
    assert (tmp_path / "cpu" / "base" / "t" / "m0" / "cpu.cfs_quota_us").read_text() == "200000"
    # without limits nothing is made there
    groups.join("t", "m1", Limits())
    assert not (tmp_path / "memory" / "base" / "t" / "m1").exists()


def test_limit_without_its_controller_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    groups = ControlGroups(Base(path=str(tmp_path / "base"), kind="v1"))
    assert len(groups.join("t", "m0", Limits(memory_bytes=1.0))) == 1
    assert "limit of memory is not enforced" in caplog.text
    assert groups.description == "cgroup v1, no limits"


def test_machine_without_control_groups_has_no_base(tmp_path: Path) -> None:
    def refused(path: Path) -> None:
        raise PermissionError

    own = tmp_path / "own"
    own.mkdir()
    assert make_base(tmp_path, []) is None
    assert make_base(tmp_path, [Hierarchy("v2", frozenset(), own)], make=refused) is None
    assert make_base(tmp_path, [Hierarchy("v1", frozenset({"freezer"}), own)], make=refused) is None
    # a kernel without cgroup.kill
    assert make_base(tmp_path, [Hierarchy("v2", frozenset(), own)]) is None


def test_groups_of_a_keeper_are_found_by_its_directory(tmp_path: Path) -> None:
    first = Base(path=str(tmp_path / "one" / "base"), kind="v2")
    second = Base(path=str(tmp_path / "two" / "base"), kind="v2")
    for base in (first, second):
        member = Path(base.path) / "token" / "m0"
        member.mkdir(parents=True)
        note_base(tmp_path, base)
    (Path(first.path) / "token" / "m0" / "cgroup.procs").write_text("7\n")
    assert bases(tmp_path) == [first, second]
    assert grouped(tmp_path) == {7: "token"}
    kill_all(tmp_path)
    assert (Path(first.path) / "cgroup.kill").read_text() == "1"
    (Path(second.path) / "cgroup.kill").unlink()
    kill_all(tmp_path, keep=second.path)
    assert Path(second.path).is_dir()
    assert not (Path(second.path) / "token").exists()
    (tmp_path / "groups.json").write_text("{")
    assert bases(tmp_path) == []

"""An executor is chosen by its name, and nothing else in the program names one."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from coadapt import plugins
from coadapt.errors import InputError, UnknownNameError
from coadapt.executors import connect_executor, find_executor
from coadapt.executors.job_source import SpecJobSource
from coadapt.executors.local import LocalExecutor
from coadapt.model import JobSpec
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

JOBS = SpecJobSource(lambda job: JobSpec(name=job))


class FakeExecutor:
    """One of a third party: says what it was made with."""

    def apply(self, actions: object) -> None: ...

    def inventory(self) -> tuple[()]:
        return ()

    def take(self, timeout_s: float) -> tuple[()]:
        return ()

    def acknowledge(self, cursor: object) -> None: ...

    @classmethod
    def connect(cls, home: Home, options: ServeOptions, *, jobs: object, log: str) -> object:
        return home, options.executor, jobs, log


def test_local_is_the_default() -> None:
    assert find_executor(ServeOptions().executor) is LocalExecutor


def test_unknown_executor_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="locl"):
        find_executor("locl")


def test_executor_of_a_third_party_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = plugins.EXECUTORS.group
    entry = metadata.EntryPoint(name="moon", value=f"{__name__}:FakeExecutor", group=group)
    monkeypatch.setattr(
        plugins,
        "entry_points",
        lambda **asked: [entry] if asked["group"] == group and asked.get("name", "moon") == "moon" else [],
    )
    options, home = ServeOptions(executor="moon"), Home(tmp_path)
    made = connect_executor("moon", home, options, jobs=JOBS, log="l")
    assert made == (home, "moon", JOBS, "l")


def test_local_offers_what_it_was_told_to() -> None:
    assert [node.name for node in LocalExecutor.offered_nodes(ServeOptions(virtual="1x2:t4+1x4"))] == [
        "n0",
        "n1",
    ]
    with pytest.raises(InputError, match="--gpus 'many' must be auto or a number"):
        LocalExecutor.offered_nodes(ServeOptions(gpus="many"))

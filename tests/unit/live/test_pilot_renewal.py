"""When the successor of a pilot is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.executors import PilotSeen
from coadapt.live import pilot_renewal
from coadapt.live.pilot_renewal import directory_of, forget_pilots, is_due, keep_pilot, renew
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

DAY = 86400.0


def seen(left_s: float | None, limit_s: float | None = DAY, *, waits: bool = False) -> PilotSeen:
    return PilotSeen("p", "1", "waiting" if waits else "running", left_s, limit_s)


@pytest.mark.parametrize(
    ("lives", "due"),
    [
        ([seen(1801.0)], False),
        ([seen(1800.0)], True),
        # its successor waits in the queue, or runs
        ([seen(60.0), seen(None, waits=True)], False),
        ([seen(60.0), seen(DAY)], False),
        # short limits
        ([seen(301.0, 3000.0)], False),
        ([seen(300.0, 3000.0)], True),
        ([seen(136.0, 180.0)], False),
        ([seen(135.0, 180.0)], True),
        # none, or not known
        ([seen(None, None)], False),
    ],
)
def test_successor_is_due_in_time_to_move(lives: list[PilotSeen], due: bool) -> None:
    assert is_due(lives) == due


def test_pilot_is_renewed_once_while_jobs_run_and_never_after_it_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    home.make()
    home.write_options(ServeOptions(executor="joined"))
    keep_pilot(home, "p", "#!/bin/sh\n")
    listed, running, submitted = [seen(60.0)], set[str](), list[str]()

    class Executor:
        def running_jobs(self, home: Home, options: ServeOptions) -> set[str]:
            return running

    def submit(script: str) -> str:
        submitted.append(script)
        listed.append(seen(None, waits=True))
        return "7"

    monkeypatch.setattr(pilot_renewal, "pilots_seen", lambda names: listed if names == ["p"] else [])
    monkeypatch.setattr(pilot_renewal, "find_executor", lambda name: Executor())
    monkeypatch.setattr(pilot_renewal, "submit_script", submit)
    assert renew(home) == []
    running.add("a")
    assert renew(home) == ["7"]
    assert renew(home) == []
    assert submitted == ["#!/bin/sh\n"]
    listed.clear()
    assert renew(home) == []
    listed.append(seen(60.0))
    assert renew(home) == [], "it had ended: what has its name now is not ours"
    assert forget_pilots(home) == []
    assert not directory_of(home).exists()

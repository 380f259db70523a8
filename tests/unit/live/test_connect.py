"""Which cluster a command means, and hints that repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.client import UnreachableError
from coadapt.live.connect import connect, home_flag, home_of


@pytest.fixture(autouse=True)
def default_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("COADAPT_SERVER", "COADAPT_API_TOKEN", "COADAPT_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COADAPT_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "cluster"


def test_hint_names_a_home_that_is_not_the_default(default_home: Path, tmp_path: Path) -> None:
    assert home_flag(home_of()) == ""
    assert home_flag(home_of(str(default_home))) == ""
    assert home_flag(home_of(str(tmp_path / "my cluster"))) == f" --home '{tmp_path}/my cluster'"


def test_hint_is_possible_without_a_default_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COADAPT_HOME", str(tmp_path / "file"))
    assert home_flag(home_of(str(tmp_path / "other"))) == f" --home {tmp_path}/other"


def test_home_without_a_controller_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=f"start one with 'coadapt serve --home {tmp_path}/other'"):
        connect(home=str(tmp_path / "other"))
    with pytest.raises(UnreachableError, match="start one with 'coadapt serve', or"):
        connect()

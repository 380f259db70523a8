from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.store.home import Home
from coadapt.wire import serve_options
from coadapt.wire.serve_options import ServeOptions


def a_home(path: Path) -> Home:
    home = Home(path / "home")
    home.make()
    return home


def test_options_come_back_as_they_were_written(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    options = ServeOptions(listen="127.0.0.1:1", policy="pollux", options={"p": "-1"}, webhooks=("http://x",))
    home.write_options(options)
    assert home.read_options() == options
    assert home.options_file.stat().st_mode & 0o777 == 0o600
    assert home.path.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in home.path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("data", [b"", b"{", b'{"polcy": "fifo"}', b'{"seed": "x"}', b'{"version": 99}'])
def test_options_that_cannot_be_read_are_one_clear_line(tmp_path: Path, data: bytes) -> None:
    home = a_home(tmp_path)
    home.options_file.write_bytes(data)
    with pytest.raises(InputError, match=r"serve\.json") as error:
        home.read_options()
    assert "\n" not in str(error.value)


def test_home_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'coadapt serve' creates one"):
        Home(tmp_path).read_options()


def test_home_where_a_file_is_in_the_way_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(InputError, match="cannot use the home directory"):
        a_home(tmp_path)


def test_identity_stays_with_the_home(tmp_path: Path) -> None:
    first = a_home(tmp_path / "a")
    assert first.identity == Home(first.path).identity
    assert first.identity != a_home(tmp_path / "b").identity


def test_store_is_a_file_inside_or_a_url(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    assert home.store(ServeOptions()) == str(home.path / "store.db")
    assert home.store(ServeOptions(store="/else/where.db")) == "/else/where.db"
    assert home.store(ServeOptions(store="postgresql://u@h/d")) == "postgresql://u@h/d"


def test_serve_json_is_readable_by_people() -> None:
    assert b'\n  "policy": "coadapt"' in serve_options.encode(ServeOptions())

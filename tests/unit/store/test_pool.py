from __future__ import annotations

import os

import pytest

from coadapt.errors import InputError
from coadapt.model import Configuration, Measurement
from coadapt.predict.history import PastJob, Pool, add
from coadapt.predict.step_table import EMPTY_TABLE, observe
from coadapt.store.pool import load, save


def a_pool():
    config = Configuration(nodes=1, replicas=2, atomic_batch=32)
    table = observe(EMPTY_TABLE, Measurement(config=config, step_s=0.5, sync_s=0.1))
    return add(Pool(), PastJob(name="bert", table=table, noise=((0.0, 10.0),), total_work=1.0))


def test_load_gives_back_what_save_wrote_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "pool.json"
    for pool in (Pool(), a_pool(), Pool(limit=7)):
        save(path, pool)
        assert load(path) == pool
    assert [each.name for each in tmp_path.iterdir()] == ["pool.json"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": 1, "pool": {"jobs": 3}}']
)
def test_load_names_a_damaged_file(tmp_path, data):
    path = tmp_path / "pool.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged or no pool"):
        load(path)


def test_load_refuses_a_newer_version_and_a_missing_file(tmp_path):
    path = tmp_path / "pool.json"
    path.write_bytes(b'{"version": 99, "pool": {"other": 1}}')
    with pytest.raises(InputError, match="version 99"):
        load(path)
    with pytest.raises(InputError, match="cannot read pool"):
        load(tmp_path / "none.json")


def test_save_says_where_it_cannot_write(tmp_path):
    with pytest.raises(InputError, match="cannot write pool"):
        save(tmp_path / "no" / "pool.json", Pool())


@pytest.mark.skipif(os.name != "posix", reason="rights")
def test_save_gives_a_new_file_the_usual_rights_and_leaves_those_of_an_old_one(tmp_path):
    path = tmp_path / "pool.json"
    before = os.umask(0o027)
    try:
        save(path, Pool())
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o600)
        save(path, a_pool())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load(path) == a_pool()


def test_save_that_is_interrupted_leaves_the_old_pool_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "pool.json"
    save(path, a_pool())

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("coadapt.store.pool.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(path, Pool())
    assert [each.name for each in tmp_path.iterdir()] == ["pool.json"]
    assert load(path) == a_pool()

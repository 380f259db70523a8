from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.model import Configuration, Measurement
from coadapt.prediction.remaining.past_jobs import PastJob, Pool, add
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, observe
from coadapt.store.pool_file import impossible, read_pool, write_pool


def a_pool():
    config = Configuration(nodes=1, replicas=2, atomic_batch=32)
    table = observe(EMPTY_TABLE, Measurement(config=config, step_s=0.5, sync_s=0.1))
    return add(Pool(), PastJob(name="bert", table=table, noise=((0.0, 10.0),), total_work=1.0))


def as_saved(tmp_path):
    write_pool(tmp_path / "pool.json", a_pool())
    return json.loads((tmp_path / "pool.json").read_bytes())


def test_load_gives_back_what_save_wrote_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "pool.json"
    for pool in (Pool(), a_pool(), Pool(limit=7)):
        write_pool(path, pool)
        assert read_pool(path) == pool
    assert [each.name for each in tmp_path.iterdir()] == ["pool.json"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": 1, "pool": {"jobs": 3}}']
)
def test_load_names_a_damaged_file(tmp_path, data):
    path = tmp_path / "pool.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged or not a pool"):
        read_pool(path)


def test_load_refuses_a_newer_version_and_a_missing_file(tmp_path):
    path = tmp_path / "pool.json"
    path.write_bytes(b'{"version": 99, "pool": {"other": 1}}')
    with pytest.raises(InputError, match="version 99"):
        read_pool(path)
    with pytest.raises(InputError, match="cannot read pool"):
        read_pool(tmp_path / "none.json")


@pytest.mark.parametrize("version", [-1, 0])
def test_load_refuses_a_version_that_never_was(tmp_path, version):
    path = tmp_path / "pool.json"
    path.write_text(f'{{"version": {version}, "pool": {{}}}}')
    with pytest.raises(InputError, match=rf"pool.json has the unknown version {version}"):
        read_pool(path)


_IMPOSSIBLE = [
    ("change_cost_s", 1e300),
    ("change_cost_s", -1),
    ("changes", -1),
    ("parameters", -5),
    ("data_size", 1e200),
    ("batch", -1),
    ("total_work", -3.5),
    ("declared_work", 1e300),
    ("finished_at", 1e18),
]
_IMPOSSIBLE_ROW = [
    ("nodes", 0),
    ("replicas", -2),
    ("replicas", 10**30),
    ("atomic_batch", 0),
    ("count", 0),
    ("step_s", 0),
    ("step_s", 1e300),
    ("sync_s", -1),
    ("step_var", -1e-3),
    ("fit_step_s", -0.5),
    ("fit_sync_s", 1e99),
]


def refused(path, plain):
    path.write_text(json.dumps(plain))
    with pytest.raises(InputError) as error:
        read_pool(path)
    assert str(error.value).startswith(f"pool {path}: ")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("field", "value"), _IMPOSSIBLE)
def test_load_names_file_job_and_field_of_an_impossible_value(tmp_path, field, value):
    plain = as_saved(tmp_path)
    plain["pool"]["jobs"][0][field] = value
    said = refused(tmp_path / "pool.json", plain)
    assert f"job 'bert': {field} {value}" in said
    assert "is not possible" in said


@pytest.mark.parametrize(("field", "value"), _IMPOSSIBLE_ROW)
def test_load_names_the_row_of_an_impossible_measurement(tmp_path, field, value):
    plain = as_saved(tmp_path)
    plain["pool"]["jobs"][0]["table"]["rows"][0][field] = value
    said = refused(tmp_path / "pool.json", plain)
    assert f"job 'bert': row 1 of its table: {field} " in said


@pytest.mark.parametrize(("at", "value", "field"), [(0, 1.5, "share"), (0, -1, "share"), (1, -2.0, "phi")])
def test_load_names_an_impossible_noise_scale(tmp_path, at, value, field):
    plain = as_saved(tmp_path)
    plain["pool"]["jobs"][0]["noise"][0][at] = value
    assert f"job 'bert': noise 1: {field}" in refused(tmp_path / "pool.json", plain)


def test_load_refuses_an_impossible_limit(tmp_path):
    plain = as_saved(tmp_path)
    plain["pool"]["limit"] = -1
    assert "its limit -1 is not possible" in refused(tmp_path / "pool.json", plain)


@given(st.floats())
def test_a_number_is_possible_or_said(value):
    said = impossible(Pool(jobs=(PastJob(name="x", change_cost_s=value),)))
    assert (said is None) == (0 <= value <= 366 * 86400)


def test_save_says_where_it_cannot_write(tmp_path):
    with pytest.raises(InputError, match="cannot write pool"):
        write_pool(tmp_path / "no" / "pool.json", Pool())


@pytest.mark.skipif(os.name != "posix", reason="rights")
def test_save_gives_a_new_file_the_usual_rights_and_leaves_those_of_an_old_one(tmp_path):
    path = tmp_path / "pool.json"
    before = os.umask(0o027)
    try:
        write_pool(path, Pool())
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o600)
        write_pool(path, a_pool())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_pool(path) == a_pool()


def test_save_that_is_interrupted_leaves_the_old_pool_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "pool.json"
    write_pool(path, a_pool())

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("coadapt.store.pool_file.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_pool(path, Pool())
    assert [each.name for each in tmp_path.iterdir()] == ["pool.json"]
    assert read_pool(path) == a_pool()

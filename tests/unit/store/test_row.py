"""Records in rows: every one comes back as it was, reports are short, and rows of an older version are read."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from coadapt.model import Configuration, Measured, Measurement, Record, Woke, encode
from coadapt.store.row import decode_row, encode_row
from coadapt.testing import EVERY_EVENT


def test_every_event_comes_back_byte_by_byte() -> None:
    for event in EVERY_EVENT:
        record = Record(seq=3, at=1.7e9 + 1 / 3, event=event)
        assert encode(decode_row(encode_row(record))) == encode(record)
        assert decode_row(encode(record)) == record, "as an older version wrote it"
        assert len(encode_row(record)) <= len(encode(record))


def test_report_takes_less_than_half() -> None:
    m = Measurement(
        config=Configuration(nodes=1, replicas=2, atomic_batch=64),
        step_s=0.21256687566597787,
        step_var=9.77238277559692e-7,
        grad_sqr=0.7471647857203805,
        grad_var=4.180165163294282,
        work=178176.0,
        metrics={"loss": 7.178570759775371},
    )
    record = Record(
        seq=123456, at=1763427753.1234567, event=Measured(job="bert-77", attempt=2, measurement=m)
    )
    assert len(encode_row(record)) < len(encode(record)) / 2
    assert len(encode_row(Record(seq=1, at=0.0, event=Woke()))) < 100


def test_damaged_row_is_an_error() -> None:
    data = encode_row(Record(seq=3, at=0.0, event=EVERY_EVENT[0]))
    for wrong in (b"", b"\x01", b"\x01abc", data[: len(data) // 2]):
        with pytest.raises((msgspec.MsgspecError, zlib.error)):
            decode_row(wrong)

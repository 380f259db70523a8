"""A record as it stands in a row of the log: JSON, or JSON deflated with a dictionary where that is shorter.

Most records are reports, much alike, and what differs are digits. With a typical report as the dictionary they take less than
a third. The first byte tells the two forms apart.
"""

from __future__ import annotations

import zlib

from coadapt.model import Record, decode, encode

#: Names that reports and decisions consist of. A row is read with the dictionary it was written with: never change it,
#: add another under another mark.
_DICTIONARY = (
    b'{"type":"JobSubmitted","job":"","spec":{"name":"","user":"","roles":[{"max":1,"demand":{"gpus":1}}],"command":["python"'
    b'"reasons":{"text":"","numbers":{"gpus":,"forecasts":{"left_s":,"low_s":,"high_s":,"method":"","done":"memory":{"wake_at":'
    b'"type":"DecisionMade","decision":,"targets":{"":{"slots":[{"node":"n0","replicas":1,"gpu_type":"'
    b'"type":"ActionsIssued","actions":[{"type":"StartJob","id":,"placement":{"slots":[{"node":'
    b',"overheads_s":{"setup":"servers":,"accumulation":1,"gpu_type":"a100"},"share":0.'
    b'{"seq":1000000,"at":1700000000.0,"event":{"type":"Woke"}}'
    b'{"seq":1000000,"at":1700000000.0,"event":{"type":"Measured","job":"train-1","attempt":1,"measurement":{"config":{"nodes":1,'
    b'"replicas":1,"atomic_batch":128},"count":10,"step_s":0.1,"step_var":0.0001,"sync_s":0.01,"sync_var":0.0001,"grad_sqr":0.1,'
    b'"grad_var":1.0,"work":100000.0,"epoch":1.0,"metrics":{"accuracy":0.9,"val_acc":0.9,"loss":1.0}}}}'
)
_MARK = b"\x01"
_LEVEL, _RAW = 6, -15
#: Shorter records are not worth it.
_LEAST = 100


def encode_row(record: Record) -> bytes:
    """Returns the record as the content of a row."""
    data = encode(record)
    if len(data) < _LEAST:
        return data
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, zdict=_DICTIONARY)
    short = _MARK + deflate.compress(data) + deflate.flush()
    return short if len(short) < len(data) else data


def decode_row(data: bytes) -> Record:
    """Returns the record in a row; raises a MsgspecError or a ``zlib.error`` if it is damaged."""
    if data[:1] == _MARK:
        inflate = zlib.decompressobj(_RAW, zdict=_DICTIONARY)
        data = inflate.decompress(data[1:]) + inflate.flush()
    return decode(data)

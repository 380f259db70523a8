"""A pack: consecutive records of the log as compressed lines of JSON, with a checksum."""

from __future__ import annotations

import lzma
from collections.abc import Sequence

import msgspec

from coadapt.errors import StoreError
from coadapt.model import Record, decode, encode

#: Smaller by a fifth than zlib; more than this preset gains next to nothing on a pack.
_PRESET = 4


def pack(records: Sequence[Record]) -> bytes:
    """Encodes records as a pack."""
    lines = b"\n".join(encode(record) for record in records)
    return lzma.compress(lines, check=lzma.CHECK_CRC64, preset=_PRESET)


def unpack(data: bytes, first: int, store: str) -> list[Record]:
    """Decodes a pack; StoreError with the names of the ``store`` and of its ``first`` record if it is damaged."""
    try:
        return [decode(line) for line in lzma.decompress(data).split(b"\n")]
    except (lzma.LZMAError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"store {store} is damaged: the pack at record {first} cannot be read ({error})"
        ) from error

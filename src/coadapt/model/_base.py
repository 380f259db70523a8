"""The base class of all facts: frozen, keyword-only, compared by value, encodable as they are.

Facts are msgspec structs and not frozen dataclasses: a simulation makes millions of them, a frozen
dataclass takes about a microsecond to build (one ``object.__setattr__`` per field), a struct a
tenth of it, and structs carry the tag and the codec that a versioned log needs.
"""

from __future__ import annotations

import msgspec

#: Version written by this coadapt. A record or spec without a version is of version 1, for ever: fields
#: are only added, with defaults, and a reader accepts every version up to its own.
SCHEMA_VERSION = 1


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything that is stated and never changed."""

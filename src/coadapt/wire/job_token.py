"""The token of one job: what its agents show when they report, and good for nothing else.

It follows from the job's id and a key of the home, so nothing is kept per job, and controller and API
agree without asking each other: HMAC-SHA256 (RFC 2104) of the id.
"""

from __future__ import annotations

import hashlib
import hmac

PREFIX = "cj_"
#: Bytes of the key in HOME/job_key.
KEY_BYTES = 32
_DOMAIN = b"coadapt job token 1\x00"


def job_token(key: bytes, job: str) -> str:
    """The token of ``job``."""
    return PREFIX + hmac.new(key, _DOMAIN + job.encode(), hashlib.sha256).hexdigest()


def is_token_of(key: bytes, job: str, token: str) -> bool:
    """Whether ``token`` is the job's; takes as long for a near miss as for any other."""
    return hmac.compare_digest(job_token(key, job).encode(), token.encode())

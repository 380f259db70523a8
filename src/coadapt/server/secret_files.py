"""Keys that processes of one home share: random, made by whoever needs one first, readable by their owner only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from coadapt.errors import InputError
from coadapt.wire.job_token import KEY_BYTES


def secret_of(path: Path) -> bytes:
    """The key in the file, made if there is none. Two that make it at once agree on one."""
    try:
        if not path.exists():
            part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(secrets.token_hex(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(part, path)  # fails where another was faster
            except FileExistsError:
                pass
            finally:
                part.unlink()
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise InputError(f"the key {path} cannot be used ({error}); remove it and start again") from None
    if len(key) < KEY_BYTES:
        raise InputError(f"the key {path} is too short; remove it and start again")
    return key

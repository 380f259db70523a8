"""What ``coadapt serve`` was told, joined with what it was told last time, and checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coadapt.cluster.home import Home
from coadapt.errors import InputError
from coadapt.units import parse_duration
from coadapt.wire.serve import ServeOptions

#: Less could forget what people are still asking about.
_LEAST_RETAIN_S = 3600.0
_FILES = ("prices", "tls_cert", "tls_key")
_SHORTEST_S, _LONGEST_S = 1.0, 365 * 86400.0


def options_of(home: Home, settings: Sequence[str], given: Mapping[str, Any]) -> ServeOptions:
    """The options; InputError in one line where they cannot be."""
    before = home.read_options() if home.options_file.exists() else ServeOptions()
    told = {name: value for name, value in given.items() if value not in (None, ())}
    if "retain" in told:
        told["retain_days"] = _days(told.pop("retain"))
    for name in _FILES:
        if name in told:
            told[name] = _file(name, told[name])
    if "store" in told and "://" not in told["store"]:
        told["store"] = str(Path(told["store"]).absolute())
    if settings or told.get("policy", before.policy) != before.policy:
        # options of another policy mean nothing to this one
        from coadapt.cli.policy_options import assignments

        told["options"] = assignments(settings)
    if "virtual" in told and "gpus" in told:
        raise InputError("--virtual and --gpus exclude each other: virtual GPUs are not this machine's")
    if "virtual" in told:
        told["gpus"] = "auto"
    elif "gpus" in told:
        told["virtual"] = ""
    options = msgspec.structs.replace(before, **told)
    _check(options)
    return options


def _check(options: ServeOptions) -> None:
    from coadapt.cli.controller_process import nodes_of, scheduler_of

    scheduler_of(options)
    nodes_of(options)
    if options.grace_s <= 0:
        raise InputError(f"grace {options.grace_s:g} is not possible; it must be more than 0 seconds")
    if options.interval_s is not None and not _SHORTEST_S <= options.interval_s <= _LONGEST_S:
        raise InputError(f"--interval {options.interval_s:g}s is not possible; it must be from 1s to 365d")
    # the API would find these out as well, but not before the rest has been started
    from coadapt.server.listening import checked_tls
    from coadapt.server.posting import checked_url
    from coadapt.server.prices import read_prices

    checked_tls(options)
    read_prices(options.prices)
    for url in options.webhooks:
        checked_url(url)


def resolved(options: ServeOptions) -> ServeOptions:
    """With a port that is free right now; InputError with the port if it is not.

    Port 0 becomes a number: the API keeps its address when it is started again, and jobs go on reporting there.
    """
    from coadapt.server.listening import listen

    with listen(options).socket as probe:
        found = probe.getsockname()[1]
    return msgspec.structs.replace(options, listen=f"{options.listen.rpartition(':')[0]}:{found}")


def _days(text: str) -> float | None:
    """How long records are kept, in days; None: for ever."""
    if text == "forever":
        return None
    seconds = parse_duration(text)
    if seconds < _LEAST_RETAIN_S:
        raise InputError(f'--retain {text} is too short; at least 1h, or "forever"')
    return seconds / 86400.0


def _file(name: str, path: str) -> str:
    if not Path(path).is_file():
        raise InputError(f"--{name.replace('_', '-')} {path}: there is no such file")
    return str(Path(path).absolute())

"""What ``coadapt serve`` was told, joined with what it was told last time, and checked before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coadapt.cluster.home import Home
from coadapt.errors import InputError
from coadapt.wire.serve import ServeOptions

_FILES = ("prices", "tls_cert", "tls_key")


def options_of(home: Home, settings: Sequence[str], given: Mapping[str, Any]) -> ServeOptions:
    """The options; InputError in one line where they cannot be."""
    before = home.read_options() if home.options_file.exists() else ServeOptions()
    told = {name: value for name, value in given.items() if value not in (None, ())}
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
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InputError("TLS takes both, a certificate and its key (--tls-cert, --tls-key)")


def resolved(options: ServeOptions) -> ServeOptions:
    """With a port that is free right now; InputError with the port if it is not.

    Port 0 becomes a number: the API keeps its address when it is started again, and jobs go on reporting there.
    """
    host, _, port = options.listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"--listen {options.listen!r} is not HOST:PORT, for example 127.0.0.1:8642")
    # here and not only in the API's process: by then there would be a keeper, and the home would remember the address
    from coadapt.server.listening import check_exposed

    check_exposed(host, options)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
            probe.listen(1)
        except OSError as error:
            raise InputError(
                f"cannot listen on port {port} of {host}: {error.strerror}; another program has it: end that one, "
                "or use --listen 127.0.0.1:0, which picks a free port"
            ) from None
        found = probe.getsockname()[1]
    return msgspec.structs.replace(options, listen=f"{f'[{host}]' if ':' in host else host}:{found}")


def _file(name: str, path: str) -> str:
    if not Path(path).is_file():
        raise InputError(f"--{name.replace('_', '-')} {path}: there is no such file")
    return str(Path(path).absolute())

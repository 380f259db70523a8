"""Options of ``coadapt serve``, as the controller and the API read them from ``HOME/serve.json``."""

from __future__ import annotations

import msgspec

from coadapt.errors import InputError

VERSION = 1
#: Seconds between two runs of 'coadapt gc' by the supervisor.
GC_S = 900.0


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One live cluster. Paths are absolute, except ``store``: a file's name is one inside the home directory."""

    listen: str = "127.0.0.1:8642"
    #: A file, or a URL ``postgresql://...``.
    store: str = "store.db"
    policy: str = "coadapt"
    #: The policy's options as typed.
    options: dict[str, str] = {}
    #: A placer's name; empty: the policy's own.
    placement: str = ""
    seed: int = 0
    #: Seconds between decisions; None: when something happens, at most every ``min_interval_s``.
    interval_s: float | None = None
    min_interval_s: float = 1.0
    #: What runs jobs, by its name.
    executor: str = "local"
    #: Virtual nodes, as in 4x4:t4; empty: this machine's own GPUs or cores.
    virtual: str = ""
    #: "submitter": jobs run as the Unix account of the user who submits them; empty: as the account that serves.
    run_as: str = ""
    #: How many of this machine's GPUs (or cores, where it has none) are offered; "auto": all.
    gpus: str = "auto"
    #: A file with the price of a GPU-hour by type.
    prices: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: Whom to tell of ends, failures and deadlines at risk; signed with the key in ``HOME/webhook_key``.
    webhooks: tuple[str, ...] = ()
    #: Whether webhooks may be addresses inside (loopback, 10.0.0.0/8, ...).
    private_webhooks: bool = False
    #: Names by which the API may be addressed, besides those of loopback if it listens there; empty: elsewhere any.
    hosts: tuple[str, ...] = ()
    #: Addresses or networks of reverse proxies that sign users in; and the headers that name the user and his groups.
    trust_proxy: tuple[str, ...] = ()
    proxy_user_header: str = "X-Forwarded-User"
    proxy_groups_header: str = "X-Forwarded-Groups"
    #: Roles by group; "*": of everybody else. Without a role a user of the proxy is refused.
    proxy_roles: dict[str, str] = {}
    #: Requests per second of one user, and how many may come at once.
    requests_per_s: float = 500.0
    burst: int = 2000
    #: Seconds from SIGTERM to SIGKILL.
    grace_s: float = 30.0
    #: Seconds that replicas on another machine go on while nobody answers their agent.
    lease_s: float = 300.0
    #: Options of the engine that grants room on nodes, as typed; and seconds for which room that nothing uses is kept.
    engine_options: dict[str, str] = {}
    idle_s: float = 60.0
    #: A directory for checkpoints that all machines see; empty: the one in the home.
    checkpoints: str = ""
    #: A network (10.1.0.0/16) in which the API may listen without TLS; empty: on loopback only.
    trusted_network: str = ""
    #: A running job hangs when it has made no step for so many times the usual, and at least so many seconds.
    hang_factor: float = 20.0
    hang_least_s: float = 120.0
    #: A controller that makes no progress for so many seconds is killed and replaced.
    liveness_s: float = 60.0
    #: Days that records are kept at least; None: for ever.
    retain_days: float | None = None
    #: Days that code and checkpoints are kept after the end of the last job that uses them, and output after it was written.
    retain_code_days: float | None = 30.0
    retain_checkpoints_days: float | None = None
    retain_logs_days: float | None = 14.0
    #: Days that the audit log is kept; None: for ever.
    audit_days: float | None = 400.0
    version: int = VERSION


def encode(options: ServeOptions) -> bytes:
    """Encodes the options for the file, indented for people to read."""
    return msgspec.json.format(msgspec.json.encode(options), indent=2) + b"\n"


def decode(data: bytes, where: str = "serve.json") -> ServeOptions:
    """Decodes the options; InputError names the file ``where`` and the error in it."""
    try:
        options = msgspec.json.decode(data, type=ServeOptions)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{where} cannot be read ({error}); mend it, or remove it and give 'coadapt serve' its options again"
        ) from None
    if options.version > VERSION:
        raise InputError(
            f"{where} is of version {options.version}, this coadapt reads up to {VERSION}; use the newer coadapt"
        )
    return options

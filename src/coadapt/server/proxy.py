"""Sign-in by a reverse proxy: it authenticates users and names them in a header.

The headers of a request count only if its connection comes from an address in ``trust_proxy`` *and* the request has the
secret in ``HOME/proxy_secret``. The address alone proves nothing: a proxy on this machine shares its address with every
other process here, jobs included. From anywhere else the headers are ignored, as if they were not there.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Sequence

from starlette.requests import Request

from coadapt.errors import InputError, suggestion
from coadapt.server.callers import Caller
from coadapt.server.http.problems import Refused
from coadapt.server.roles import ROLES, highest
from coadapt.spec.job_rules import NAME
from coadapt.wire.api import TokenRole
from coadapt.wire.serve_options import ServeOptions

SECRET_HEADER = "X-Coadapt-Proxy-Secret"
#: With this header a request that a proxy signed in may change something: no page of another site can send it.
CHANGE_HEADER = "Coadapt-Request"
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_MOST_GROUPS = 1000

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Proxy:
    """The trusted proxies of one API, and the roles of the groups that they name. ``secret``: in hexadecimal."""

    def __init__(self, options: ServeOptions, secret: str = "") -> None:
        self._networks = [network_of(text) for text in options.trust_proxy]
        self._roles = {group: role_of(role) for group, role in options.proxy_roles.items()}
        self._user, self._groups = options.proxy_user_header, options.proxy_groups_header
        self._secret = secret

    def vouches(self, request: Request) -> bool:
        """Returns True if the request comes from a trusted proxy, which has shown the secret."""
        if not self._networks or not self._secret or request.client is None:
            return False
        given = request.headers.getlist(SECRET_HEADER)
        return (
            len(given) == 1
            and hmac.compare_digest(given[0].strip().encode(), self._secret.encode())
            and _within(request.client.host, self._networks)
        )

    def address(self, request: Request) -> str:
        """Returns where a request comes from: behind a trusted proxy, the address that the proxy saw."""
        peer = request.client.host if request.client else ""
        if not self.vouches(request):
            return peer
        last = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
        try:
            return str(ipaddress.ip_address(last))
        except ValueError:
            return peer

    def secure(self, request: Request) -> bool:
        """Returns True if the browser's connection is encrypted, here or at a trusted proxy."""
        if request.url.scheme == "https":
            return True
        return self.vouches(request) and request.headers.get("x-forwarded-proto", "").lower() == "https"

    def caller(self, request: Request) -> Caller | None:
        """Returns the user whom a trusted proxy names; None if it names none, Refused if he has no role."""
        if not self.vouches(request):
            return None
        names = request.headers.getlist(self._user)
        if not names or not names[0].strip():
            return None
        name = names[0].strip()
        if len(names) > 1 or not NAME.fullmatch(name):
            raise Refused(
                401,
                f"the proxy named the user {name[:80]!r}; a name is 1 to 63 letters, digits, '_', '.' or '-'",
            )
        role = highest(self._roles_of(",".join(request.headers.getlist(self._groups)).split(",")))
        if role is None:
            raise Refused(
                403, f"no group of {name} has a role here; ask an administrator (serve --proxy-role)"
            )
        return Caller(name, role, "proxy")

    def _roles_of(self, groups: Sequence[str]) -> list[TokenRole]:
        found = [
            role for group in groups[:_MOST_GROUPS] if (role := self._roles.get(group.strip())) is not None
        ]
        return found or [role for group, role in self._roles.items() if group == "*"]


def checked_proxy(options: ServeOptions) -> None:
    """Raises an InputError if the options of proxies are invalid."""
    Proxy(options)
    for name in (options.proxy_user_header, options.proxy_groups_header):
        if not _HEADER.fullmatch(name):
            raise InputError(f"{name!r} is not the name of a header; write for example X-Forwarded-User")
        if name.lower() in ("authorization", "cookie", "host", SECRET_HEADER.lower()):
            raise InputError(f"the header {name} cannot name users or groups; use another one")
    if options.proxy_roles and not options.trust_proxy:
        raise InputError("--proxy-role needs --trust-proxy, the address of the proxy")
    if options.trust_proxy and not options.proxy_roles:
        raise InputError("--trust-proxy needs --proxy-role GROUP=ROLE; '*=user' makes everybody a user")


def network_of(text: str) -> Network:
    """Returns the network of an address or a CIDR; InputError if it is neither."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InputError(
            f"--trust-proxy {text!r} is not an address or a network; write for example 127.0.0.1 or 10.0.0.0/24"
        ) from None


def role_of(text: str) -> TokenRole:
    """Returns the role called ``text``; InputError if there is none."""
    for role in ROLES:
        if role == text:
            return role
    raise InputError(f"unknown role {text!r}; {suggestion(text, ROLES)}")


def _within(host: str, networks: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)

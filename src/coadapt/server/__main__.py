"""``python -m coadapt.server HOME``: the API of one home, until it is told to end."""

from __future__ import annotations

import logging
import resource
import sys
from contextlib import suppress

import uvicorn

from coadapt.cluster.home import Home, write_private
from coadapt.errors import CoadaptError
from coadapt.server.app import make_app
from coadapt.server.connections import MOST_CONNECTIONS, Connection
from coadapt.server.listening import listen
from coadapt.wire.serve import ServeOptions

log = logging.getLogger("coadapt.server")
_KEEP_ALIVE_S, _END_S = 75, 5


class _Server(uvicorn.Server):
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, home: Home, url: str) -> None:
        super().__init__(config)
        self._home, self._url = home, url

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """As uvicorn does, then writes HOME/address."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            write_private(self._home.address, f"{self._url}\n".encode())
            log.info("listening on %s", self._url)


def run(home: Home) -> None:
    """Listens until SIGTERM or Ctrl-C."""
    options = home.read_options()
    place = listen(options)
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4 * MOST_CONNECTIONS), most))
    with place.socket:
        _Server(_config(home, options), home, place.url).run([place.socket])


def _config(home: Home, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(home, options),
        http=Connection,
        ws="none",
        lifespan="on",
        # who asks for what is nobody's business, and queries may hold what should not be kept
        access_log=False,
        log_config=None,
        server_header=False,
        # what a client says about where it comes from is not believed
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_END_S,
        h11_max_incomplete_event_size=32 << 10,
        ssl_certfile=options.tls_cert or None,
        ssl_keyfile=options.tls_key or None,
    )


def main() -> None:
    """One line for what the user can mend."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if len(sys.argv) != 2:
        sys.exit("usage: python -m coadapt.server HOME")
    try:
        run(Home(sys.argv[1]))
    except CoadaptError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

"""``python -m coadapt.server HOME``: serves the API of one home until it is stopped."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from coadapt.errors import CoadaptError
from coadapt.server.app import make_app
from coadapt.server.http.listening import MOST_CONNECTIONS, Connection, listen
from coadapt.store.home import Home, write_private
from coadapt.wire.serve_options import ServeOptions

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


def run(home: Home, advanced: Callable[[], None] = lambda: None) -> None:
    """Listens until SIGTERM or Ctrl-C; ``advanced`` is called again and again while requests are answered."""
    options = home.read_options()
    place = listen(options)
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4 * MOST_CONNECTIONS), most))
    with place.socket:
        _Server(_config(home, options, advanced), home, place.url).run([place.socket])


def _config(home: Home, options: ServeOptions, advanced: Callable[[], None]) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(home, options, advanced=advanced),
        http=Connection,
        ws="none",
        lifespan="on",
        # no access log: requests are private, and queries may hold values that must not be stored
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


def main(progress: Callable[[Home], Callable[[], None]] = lambda home: lambda: None) -> None:
    """Runs the server; an error that the user can mend is printed in one line.

    ``progress`` returns a function that is called again and again.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if len(sys.argv) != 2:
        sys.exit("usage: python -m coadapt.server HOME")
    try:
        home = Home(sys.argv[1])
        run(home, progress(home))
    except CoadaptError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

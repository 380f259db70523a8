"""``python -m coadapt.executors.hub.hub_process HOME``: the hub of a cluster, started by its executor.

It listens on a Unix socket in ``HOME/hub``: for the controller, with the keeper's messages, and for the API, which relays
agents' requests and asks for output. It has one thread and never blocks on a caller. It outlives the controller, as a keeper
does, and ends when it is asked to and no attempt is left.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from coadapt.errors import CoadaptError, StoreError
from coadapt.executors import find_executor
from coadapt.executors.agent.session_messages import (
    DeclareGone,
    Exchange,
    FindLog,
    HubRequest,
    Join,
    Leave,
    ListAgents,
)
from coadapt.executors.engines._base import environment_of
from coadapt.executors.hub.engine_thread import EngineThread
from coadapt.executors.hub.engine_units import EngineUnits
from coadapt.executors.hub.hub import Hub
from coadapt.executors.hub.hub_journal import HubJournal, TakenOverError
from coadapt.executors.joined import JoinedExecutor
from coadapt.executors.node.keeper import Caller, Keeper
from coadapt.executors.node.protocol import Request
from coadapt.store import Store, open_store
from coadapt.store.home import Home, write_private
from coadapt.store.token_table import Token, new_token, token_hash
from coadapt.wire.serve_options import ServeOptions

log = logging.getLogger(__name__)
#: Name of the token of agents in units of an engine.
_UNITS = "engine-units"
#: Longest that an exchange is held back.
MOST_WAIT_S = 30.0

_decoder: msgspec.json.Decoder[HubRequest | Request] = msgspec.json.Decoder(HubRequest | Request)


class HubServer(Keeper):
    """Answers the controller as a keeper does, and the API's requests; some of those only when there is something to say."""

    title = "hub"
    trouble = (StoreError,)

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.hub = hub
        #: Exchanges that wait for a command, and questions that wait for an agent.
        self._parked: dict[Caller, tuple[Exchange, float]] = {}
        self._asking: dict[Caller, int] = {}
        self._ended = False
        if hub.units is not None:
            hub.units.start(self._wake)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is awake
            self._alarm_writer.send(b"\0")

    def over(self) -> bool:
        """Whether to end: by SIGTERM (attempts go on under the next hub), or asked to shut down and nothing is left."""
        return self._ended or super().over()

    def _terminated(self, number: int, frame: object) -> None:
        self._ended = True

    def _reply(self, data: bytes, caller: Caller) -> bytes | None:
        request = _decoder.decode(data)
        if isinstance(request, Exchange):
            if request.wait_s > 0 and not self.hub.has_news(request) and not request.reports:
                # the lease is renewed by the answer, which comes later
                self._parked[caller] = (request, time.monotonic() + min(request.wait_s, MOST_WAIT_S))
                return None
            return _line(self.hub.exchange(request))
        if isinstance(request, FindLog):
            sessions = self.hub.holders_of((request.job, request.attempt))
            self._asking[caller] = self.hub.logs.ask(request, sessions, time.monotonic())
            return None
        if isinstance(request, Join):
            return _line(self.hub.join(request))
        if isinstance(request, Leave):
            return _line(self.hub.leave(request))
        if isinstance(request, ListAgents):
            return _line(self.hub.list_agents())
        if isinstance(request, DeclareGone):
            return _line(self.hub.declare_gone(request.node))
        answer = self._answer(request, caller)
        return None if answer is None else _line(answer)

    def _tell(self) -> None:
        self._answer_parked()
        super()._tell()

    def _answer_parked(self) -> None:
        now = time.monotonic()
        for caller, (request, until) in list(self._parked.items()):
            if self.hub.has_news(request) or now >= until:
                del self._parked[caller]
                caller.unsent += _line(self.hub.exchange(request))
        names = self.hub.machine_names()
        for caller, number in list(self._asking.items()):
            found = self.hub.logs.result(number, now, names)
            if found is not None:
                del self._asking[caller]
                caller.unsent += _line(found)

    def _drop(self, caller: Caller) -> None:
        self._parked.pop(caller, None)
        if (number := self._asking.pop(caller, None)) is not None:
            self.hub.logs.close(number)
        super()._drop(caller)

    def patience_s(self) -> float | None:
        """Returns the seconds until something is due."""
        times = [until - time.monotonic() for _, until in self._parked.values()]
        if self._asking:
            times.append(0.5)
        due = super().patience_s()
        return max(min([*times, *([] if due is None else [due])], default=5.0), 0.005)


def _line(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def _units(home: Home, options: ServeOptions, journal: HubJournal) -> EngineUnits | None:
    """The room that an engine grants; None: machines join by themselves."""
    store = open_store(home.store(options))
    with closing(store.log()) as events:
        cluster = events.identity
    executor = find_executor(options.executor)
    assert isinstance(executor, type)
    assert issubclass(executor, JoinedExecutor)
    engine = executor.engine(home, options, cluster)
    if engine is None:
        return None
    token = unit_token(home, store)

    def environment(unit: str, node: str) -> Mapping[str, str]:
        try:
            url = home.address.read_text().strip()
        except OSError:
            url = ""  # the API does not listen yet; the unit is told again before it is claimed
        return environment_of(unit, url=url, token=token, node=node)

    return EngineUnits(
        EngineThread(engine),
        journal,
        cluster=cluster,
        environment=environment,
        idle_s=options.idle_s,
    )


def unit_token(home: Home, store: Store) -> str:
    """Returns the token by which agents in units of an engine join; made once, and readable by its owner only."""
    file = home.hub / "unit_token"
    if not file.exists():
        text = new_token()
        with closing(store.tokens()) as tokens:
            tokens.remove(_UNITS)
            tokens.add(Token(name=_UNITS, role="node", made_at=time.time()), token_hash(text))
        write_private(file, text.encode())
    return file.read_text().strip()


def run(home: Home) -> int:
    """Runs the hub of a home; a second one ends at once."""
    options = home.read_options()
    home.hub.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock_file = os.open(home.hub / "keeper.lock", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(lock_file, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another hub owns %s", home.hub)
            return 0
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        journal = HubJournal(open_store(home.store(options)).connect())
        place = Path(options.checkpoints) if options.checkpoints else home.checkpoints
        hub = Hub(
            home.hub,
            journal,
            lease_s=options.lease_s,
            grace_s=options.grace_s,
            checkpoints=place,
            units=_units(home, options, journal),
        )
        HubServer(hub).run()
    return 0


def main() -> None:
    """Runs the hub; an error that its user can mend is one line."""
    parser = argparse.ArgumentParser(prog="python -m coadapt.executors.hub.hub_process")
    parser.add_argument("home", type=Path)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        sys.exit(run(Home(given.home)))
    except TakenOverError as error:
        log.warning("%s", error)
        sys.exit(0)
    except CoadaptError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

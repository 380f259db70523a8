"""``python -m coadapt.executors.engines.ray_driver ADDRESS``: speaks with Ray for ``RayEngine``; requests on stdin, replies on stdout.

It keeps nothing that matters: actors are found by their names. It ends with its caller, and when Ray does not answer.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from coadapt.executors.engines._base import SeenUnit
from coadapt.executors.engines.ray import NAMESPACE, OLDEST
from coadapt.executors.engines.ray_messages import (
    Claim,
    ListNodes,
    ListUnits,
    RayNode,
    Release,
    Reply,
    Request,
)
from coadapt.executors.engines.ray_unit import UnitActor

#: Seconds for which an actor that has died is listed as ended, and beyond its own patience until one that does not end is killed.
_KEPT_S, _KILL_S = 60.0, 15.0
#: Seconds for a connection to the head.
_REACH_S = 5.0


_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception): ")


class _Known:
    """An actor: its handle, and a question that it answers as soon as it runs."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.answer = handle, handle.ready.remote()
        self.runs = False
        self.kill_at: float | None = None


class RayActors:
    """The units of one namespace."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._known: dict[str, _Known] = {}
        #: Actors that have died: until when each is listed, and why.
        self._ended: dict[str, tuple[float, str]] = {}
        #: Wishes that have not been granted, and why the last actor on a node never ran, by Ray's name of it.
        self._wishes: dict[str, Claim] = {}
        self._failed: dict[str, str] = {}

    def do(self, request: Request) -> Reply:
        """Carries out a request."""
        if isinstance(request, ListNodes):
            return Reply(nodes=self._nodes())
        if isinstance(request, ListUnits):
            return Reply(units=tuple(self._units(request.prefix)))
        if isinstance(request, Claim):
            return Reply(refused=self._claim(request))
        self._release(request)
        return Reply()

    def _nodes(self) -> tuple[RayNode, ...]:
        return tuple(
            RayNode(
                id=each["NodeID"],
                name=_given_name(each),
                host=each.get("NodeManagerHostname", ""),
                resources=dict(each.get("Resources", {})),
                labels=dict(each.get("Labels") or {}),
            )
            for each in self._ray.nodes()
            if each["Alive"]
        )

    def _units(self, prefix: str) -> list[SeenUnit]:
        listed = {name for name in self._ray.util.list_named_actors() if name.startswith(prefix)}
        now = time.monotonic()
        for name in listed - set(self._known):
            with suppress(ValueError):  # it has died since
                self._known[name] = _Known(self._ray.get_actor(name, namespace=NAMESPACE))
        for name in [name for name in self._known if name.startswith(prefix) and name not in listed]:
            self._note_end(name, now)
        self._ended = {
            name: each for name, each in self._ended.items() if each[0] > now and name not in listed
        }
        alive = {name: each for name, each in self._known.items() if name in listed}
        self._look(alive, now)
        found = [SeenUnit(name=name, state="ended", reason=why) for name, (_, why) in self._ended.items()]
        return found + [self._seen(name, each) for name, each in alive.items()]

    def _look(self, alive: dict[str, _Known], now: float) -> None:
        """Finds out which actors run by now, and kills those that were to end and do not."""
        asked = {each.answer: name for name, each in alive.items() if not each.runs}
        if asked:
            done, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)
            for answer in done:
                alive[asked[answer]].runs = True
                self._wishes.pop(asked[answer], None)
        for each in alive.values():
            if each.kill_at is not None and now >= each.kill_at:
                self._ray.kill(each.handle, no_restart=True)

    def _seen(self, name: str, known: _Known) -> SeenUnit:
        if known.kill_at is not None:
            return SeenUnit(name=name, state="ending")
        if known.runs:
            return SeenUnit(name=name, state="running")
        return SeenUnit(name=name, state="waiting", reason=self._reason(name))

    def _reason(self, name: str) -> str:
        """Why an actor waits. Ray gives no reason; what is free on its node is one."""
        wish = self._wishes.get(name)
        if wish is None:
            return "Ray has not started the actor yet"
        free = _free(wish.node)
        kind, count = ("GPU", wish.gpus) if wish.gpus else ("CPU", wish.cpus)
        has = int(free.get(kind, 0))
        if has < count:
            return f"Ray has {has} of {count} {kind}s free on the node"
        return "Ray has not started the actor yet"

    def _note_end(self, name: str, now: float) -> None:
        known, wish = self._known.pop(name), self._wishes.pop(name, None)
        why = ""
        if not known.runs:
            try:
                self._ray.get(known.answer, timeout=1.0)
            except Exception as error:
                why = _said(error)
                if wish is not None and known.kill_at is None:
                    self._failed[wish.node] = why
        self._ended[name] = (now + _KEPT_S, why)

    def _claim(self, wish: Claim) -> str:
        """Asks for an actor; returns why Ray refuses it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        failed = self._failed.pop(wish.node, "")
        if failed:
            return f"Ray could not start an agent: {failed}"
        try:
            handle = (
                self._ray.remote(UnitActor)
                .options(
                    name=wish.name,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    max_restarts=0,
                    max_concurrency=4,
                    num_gpus=wish.gpus,
                    num_cpus=wish.cpus,
                    # by Ray's own name of the node: addresses and resources may be shared by several
                    scheduling_strategy=NodeAffinitySchedulingStrategy(wish.node, soft=False),
                )
                .remote(wish.command, wish.environment)
            )
        except ValueError as error:
            # the name is taken: the unit is there already
            return "" if "already taken" in str(error) else _said(error)
        self._known[wish.name] = _Known(handle)
        self._wishes[wish.name] = wish
        return ""

    def _release(self, request: Release) -> None:
        for name in request.names:
            known = self._known.get(name)
            if known is None:
                try:
                    known = self._known[name] = _Known(self._ray.get_actor(name, namespace=NAMESPACE))
                except ValueError:
                    continue
                self._ray.wait([known.answer], timeout=1.0)
            self._look({name: known}, time.monotonic())
            if not known.runs:
                known.kill_at = time.monotonic()
                self._ray.kill(known.handle, no_restart=True)
            elif known.kill_at is None:
                known.kill_at = time.monotonic() + request.kill_wait_s + _KILL_S
                known.handle.stop.remote(request.kill_wait_s)


def _given_name(node: dict[str, Any]) -> str:
    """The name that somebody gave a node; by default it is the address, and then the host's name says more."""
    name = node.get("NodeName", "")
    return "" if name == node.get("NodeManagerAddress") else str(name)


def _free(node: str) -> dict[str, float]:
    from ray._private.state import available_resources_per_node  # there is no public way to ask for one node

    return dict(available_resources_per_node().get(node, {}))


def _said(error: BaseException) -> str:
    """What an error of Ray's says, without its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # the error of a remote call has a stack, and what was raised there by its end
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else " ".join(" ".join(lines).split()))[:300] or type(error).__name__


def connect(address: str) -> Any:
    """Connects this process to a cluster of Ray; returns the module. RuntimeError says what is wrong in one line."""
    try:
        import ray
    except ImportError:
        raise RuntimeError("Ray is not installed here; pip install 'coadapt[ray]'") from None
    if version_of(ray.__version__) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RuntimeError(f"Ray {ray.__version__} is too old; Coadapt needs {oldest} or newer")
    if address != "auto":
        _reach(address)
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except Exception as error:
        raise RuntimeError(_trouble(address, error)) from None
    return ray


def _reach(address: str) -> None:
    """Ray itself tries for a minute to reach a head that is not there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise RuntimeError(
            f"{address!r} is not the address of a Ray cluster; write HOST:PORT of its head, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise RuntimeError(
            f"no Ray answers at {address} ({error.strerror or error}); is its head running, and this machine a part of the cluster?"
        ) from None


def version_of(text: str) -> tuple[int, ...]:
    """Returns the numbers of a version: 2.60.0rc1 is (2, 60)."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _trouble(address: str, error: Exception) -> str:
    said, text = _said(error), ""
    cause: BaseException | None = error
    while cause is not None:
        text += f"{type(cause).__name__} {cause} ".lower()
        cause = cause.__cause__ or cause.__context__
    if "mismatch" in text:
        return f"Ray at {address} is of another version than the one installed here: {said}"
    if "authenticat" in text:
        return (
            f"Ray at {address} refuses this user: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the token of the cluster, "
            "for 'coadapt' as for every program that uses it"
        )
    if address == "auto" and isinstance(error, ConnectionError):
        return (
            "no Ray runs on this machine; start it ('ray start'), or give the address HOST:PORT of its head"
        )
    return f"Ray at {address} cannot be used: {said}"


def serve(address: str, requests: BinaryIO, replies: BinaryIO) -> int:
    """Answers requests until there are no more, or Ray fails."""
    decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
    try:
        actors = RayActors(connect(address))
    except RuntimeError as error:
        return _say(replies, Reply(silent=str(error)))
    for line in requests:
        try:
            reply = actors.do(decoder.decode(line))
        except Exception as error:
            return _say(replies, Reply(silent=f"Ray at {address} does not answer: {_said(error)}"))
        _say(replies, reply)
    return 0


def _say(replies: BinaryIO, reply: Reply) -> int:
    replies.write(msgspec.json.encode(reply) + b"\n")
    replies.flush()
    return 1 if reply.silent else 0


def main(arguments: Sequence[str]) -> int:
    """Answers on what was standard output; everything that Ray prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return serve(arguments[0], sys.stdin.buffer, replies)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # Ray's own farewell takes long where its head is gone, and there is nothing to say

"""Ray: a unit is a detached, named actor that takes all GPUs of one node, and has ``coadapt node join`` as its child.

Ray is spoken with by a process of its own (``ray_driver``): a driver loads a lot, and Ray ends it when the node under it or the head
dies. This module does not import Ray.

What was seen of 2.60 and is answered here: an actor that is reported dead may have left processes (the agent dies with its actor, the
hub waits for the lease); a name is free again as soon as its actor is dead (the agent's claim stops a second life); a cluster whose
head is gone is gone with it and nobody answers (nothing is concluded from that).
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coadapt.errors import InputError
from coadapt.executors.engines._base import (
    EngineNode,
    EngineRefusedError,
    EngineSilentError,
    SeenUnit,
    Unit,
    environment_of,
    prefix_of,
)
from coadapt.executors.engines.ray_messages import (
    Ask,
    Claim,
    ListNodes,
    ListUnits,
    RayNode,
    Release,
    Reply,
)
from coadapt.executors.node.processes import dies_with
from coadapt.model import Node

#: The oldest release of Ray with everything that is used here; its own messages differ between releases anyway.
OLDEST = (2, 30)
#: Namespace of the actors.
NAMESPACE = "coadapt"
#: Label of a node of Ray that gives it a name of one's own.
LABEL = "coadapt/node"
#: Seconds until the driver is connected, until it has answered, and until another is started after one that failed.
_CONNECT_S, _ANSWER_S, _AGAIN_S = 60.0, 10.0, 5.0
_KIND = "accelerator_type:"
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


class RayOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which cluster of Ray, and how agents run in it."""

    #: HOST:PORT of the head, or "auto": the cluster that this machine is a part of.
    address: str = "auto"
    #: Interpreter with Coadapt on the nodes; empty: that of Ray's own workers.
    python: str = ""
    #: Whether GPUs are only counted, not there: for tests.
    virtual: bool = False


class RayEngine:
    """Implements ``Engine``.

    Args:
        cluster: identity of the event log, part of the names of units.
        options: which cluster of Ray.
        kill_wait_s: seconds from SIGTERM to SIGKILL for an agent that is to end.
    """

    name = "ray"

    def __init__(self, cluster: str, options: RayOptions, kill_wait_s: float = 60.0) -> None:
        self._prefix, self._options, self._kill_wait_s = prefix_of(cluster), options, kill_wait_s
        self._driver: _Driver | None = None
        self._quiet = False
        self._trouble, self._not_before = "", 0.0
        #: Ray's own name of each node, as last listed.
        self._ids: dict[str, str] = {}

    def check(self) -> list[EngineNode]:
        """Returns the nodes; InputError if there is no such cluster, or it cannot be used."""
        if self._options.address.startswith("ray://"):
            raise InputError(
                f"Ray at {self._options.address}: addresses of Ray Client are not taken; give HOST:PORT of the head, on a machine of the cluster"
            )
        self._quiet = True
        try:
            return self.nodes()
        except (EngineSilentError, EngineRefusedError) as error:
            raise InputError(str(error)) from None
        finally:
            self.close()

    def close(self) -> None:
        """Ends the driver; units stay."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def nodes(self) -> list[EngineNode]:
        """Returns the nodes that are alive and have GPUs, or CPUs where they have none."""
        named = named_nodes(self._ask(ListNodes()).nodes)
        self._ids = {node.name: each.id for node, each in named}
        return [EngineNode(node=node, closed=each.draining) for node, each in named]

    def claim(self, unit: Unit) -> None:
        """Asks for an actor, unless one of this name is there."""
        if unit.node.name not in self._ids:
            self.nodes()
        if unit.node.name not in self._ids:
            raise EngineRefusedError(f"Ray has no node {unit.node.name} any more")
        self._ask(self._wish(unit))

    def release(self, names: Sequence[str]) -> None:
        """Has actors end their agents: SIGTERM, and SIGKILL after a while. Those that wait for room are withdrawn."""
        self._ask(Release(names=tuple(names), kill_wait_s=self._kill_wait_s))

    def units(self) -> list[SeenUnit]:
        """Returns every actor of this cluster that Ray lists, and those that died a short while ago."""
        return list(self._ask(ListUnits(prefix=self._prefix)).units)

    def script(self, unit: Unit) -> str:
        """Returns what is asked of Ray."""
        wish = self._wish(unit)
        command = shlex.join((wish.command[0] or "python", *wish.command[1:]))
        return (
            f"# an actor of Ray, namespace {NAMESPACE}; {', '.join(sorted(unit.environment))} in the environment of its agent\n"
            f"name={unit.name} lifetime=detached max_restarts=0 num_gpus={wish.gpus} num_cpus={wish.cpus} node={unit.node.name}\n"
            f"{command}\n"
        )

    def sample(self, node: Node, url: str) -> str:
        """Returns what would be asked of Ray for a node by a controller at ``url``."""
        name = "coadapt-CLUSTER-NODE-N"
        return self.script(
            Unit(
                name=name,
                node=node,
                environment=dict(environment_of(name, url=url, token="...", node=node.name)),
            )
        )

    def _wish(self, unit: Unit) -> Claim:
        node = unit.node
        offer = ("--virtual", f"{node.gpus}:{node.gpu_type}") if self._options.virtual else ()
        join = ("-m", "coadapt.cli.main", "node", "join", *offer)
        return Claim(
            name=unit.name,
            node=self._ids.get(node.name, ""),
            gpus=0 if node.gpu_type == "cpu" else node.gpus,
            cpus=node.gpus if node.gpu_type == "cpu" else 0,
            command=(
                self._options.python,
                *join,
                unit.environment.get("COADAPT_URL", ""),
                "--name",
                node.name,
            ),
            environment=unit.environment,
        )

    def _ask(self, request: Ask) -> Reply:
        if self._driver is None:
            # a driver takes seconds of CPU time: one that cannot connect is not followed at once by another
            if time.monotonic() < self._not_before:
                raise EngineSilentError(self._trouble)
            self._driver = _Driver(self._options.address, quiet=self._quiet)
        try:
            reply = self._driver.ask(request)
            if not reply.silent:
                self._trouble = ""
        except EngineSilentError as error:
            reply = Reply(silent=str(error))
        if reply.silent:
            self.close()
            self._trouble, self._not_before = reply.silent, time.monotonic() + _AGAIN_S
            raise EngineSilentError(reply.silent)
        if reply.refused:
            raise EngineRefusedError(reply.refused)
        return reply


class _Driver:
    """The process that speaks with Ray."""

    def __init__(self, address: str, *, quiet: bool) -> None:
        self._address, self._answered = address, False
        self._data = bytearray()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "coadapt.executors.engines.ray_driver", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ray logs a lot; what matters is in the answer
            stderr=subprocess.DEVNULL if quiet else None,
            preexec_fn=dies_with(os.getpid()),
        )

    def ask(self, request: Ask) -> Reply:
        """Returns the answer; EngineSilentError if there is none in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # its last words say why
        reply = msgspec.json.decode(self._line(), type=Reply)
        self._answered = True
        return reply

    def _line(self) -> bytes:
        limit_s = _ANSWER_S if self._answered else _CONNECT_S
        until = time.monotonic() + limit_s
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._data:
                left_s = until - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise EngineSilentError(f"Ray at {self._address} does not answer within {limit_s:.0f} s")
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise EngineSilentError(
                        f"Ray at {self._address} has ended the connection; is its head alive?"
                    )
                self._data += part
        line, _, rest = bytes(self._data).partition(b"\n")
        self._data = bytearray(rest)
        return line

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def named_nodes(nodes: Sequence[RayNode]) -> list[tuple[Node, RayNode]]:
    """Returns the nodes that offer something, as Coadapt calls them: by the label ``coadapt/node``, or the name in Ray, or the host.

    Where two have one name (several nodes of Ray on one machine), both get a part of Ray's own.
    """
    found = []
    for each in nodes:
        kinds = sorted(name.removeprefix(_KIND) for name in each.resources if name.startswith(_KIND))
        gpus, cpus = int(each.resources.get("GPU", 0)), int(each.resources.get("CPU", 0))
        if not gpus and not cpus:
            continue  # as a head that runs nothing
        # the GPUs of a node of Ray are of one type
        kind = (_plain(kinds[0]).lower() if kinds else "gpu") if gpus else "cpu"
        name = _plain(each.labels.get(LABEL) or each.name or each.host)
        found.append((Node(name=name, gpus=gpus or cpus, gpu_type=kind), each))
    count: dict[str, int] = {}
    for node, _ in found:
        count[node.name] = count.get(node.name, 0) + 1
    renamed = [
        (
            node
            if count[node.name] == 1
            else msgspec.structs.replace(node, name=f"{node.name}-{each.id[:8]}"),
            each,
        )
        for node, each in found
    ]
    # Ray lists them in any order
    return sorted(renamed, key=lambda pair: pair[0].name)


def _plain(text: str) -> str:
    return _NO_NAME.sub("-", text).strip("-.")[:54] or "node"


def ray_options(given: Mapping[str, Any]) -> RayOptions:
    """Returns the options of the engine as typed; InputError names the wrong one."""
    try:
        return msgspec.convert(dict(given), RayOptions, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(field.name for field in msgspec.structs.fields(RayOptions))
        raise InputError(f"--engine-option: {error}; Ray takes {names}") from None

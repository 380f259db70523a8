"""Messages between an agent on another machine and the hub, which the API relays as JSON.

The agent sends every request; the hub answers each. Commands are numbered per session and sent until the agent says that it
has them; reports are numbered by the agent and sent until the hub says that they are durable. So both may come twice, and
nothing is done twice. Fields are only added, with defaults: agent and hub may be one release apart.
"""

from __future__ import annotations

import msgspec

from coadapt.executors.gang.messages import Command, Message, Report
from coadapt.model import Measurement, Node
from coadapt.wire.node_messages import Launch, LogSlice, Stream

#: Version of these messages, and the oldest that either side still understands.
PROTOCOL, OLDEST = 1, 1
#: Name of the file in the place of checkpoints by which an agent knows that it sees the hub's own place.
PROOF = ".coadapt-proof"
#: Seconds beyond lease and grace that an agent's replicas are still taken to live.
MARGIN_S = 5.0


class Join(Message, frozen=True):
    """An agent offers its machine. Nothing was started there before the answer."""

    #: Name of the agent's life; never used again.
    session: str
    nodes: tuple[Node, ...]
    #: Which machine it is, and which boot of it.
    machine: str
    boot: str
    #: Earlier sessions on this machine of which no process is left.
    buried: tuple[str, ...] = ()
    #: The unit of an engine that it runs in, and the engine's name for this life of the unit; empty: joined by hand.
    unit: str = ""
    generation: str = ""
    #: Seconds until the machine is taken away; None: it stays.
    remaining_s: float | None = None
    #: Whether the machine sees the hub's place of checkpoints; None: it asks where that is, and joins by its next request.
    shares_checkpoints: bool | None = None
    protocol: int = PROTOCOL
    version: str = ""
    #: A secret of the machine's agent, the same in all its sessions: who does not know it cannot take its place.
    key: str = ""
    #: Name of the token that was used; set by the API, whatever the agent says.
    by: str = ""


class Joined(Message, frozen=True):
    """Answer to ``Join``; ``refused`` says why not, ``final``: the agent must end and not try again."""

    refused: str = ""
    final: bool = False
    lease_s: float = 0.0
    grace_s: float = 0.0
    #: The place of checkpoints, and the text that its file ``PROOF`` has where it is the hub's own place; empty: there is none.
    checkpoints: str = ""
    proof: str = ""


class Admit(Message, frozen=True):
    """Commands for this attempt follow; ``token`` marks all its processes."""

    launch: Launch
    token: str


class Forget(Message, frozen=True):
    """The attempt has ended."""


class Measurements(Message, frozen=True):
    """What an attempt has reported by its output."""

    measurements: tuple[Measurement, ...]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A command for an attempt on the agent's machine."""

    number: int
    job: str
    attempt: int
    command: Command | Admit | Forget


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A report about an attempt on the agent's machine."""

    number: int
    job: str
    attempt: int
    report: Report | Measurements


class ReadLog(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a part of a replica's output; see ``JobFiles.read_log``."""

    number: int
    job: str
    attempt: int
    rank: int
    stream: Stream
    offset: int
    limit: int


class LogRead(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to ``ReadLog`` of the same number; ``part`` None: there is no such output here."""

    number: int
    part: LogSlice | None = None


class Exchange(Message, frozen=True):
    """Reports and answers go one way, commands the other. The answer renews the lease."""

    session: str
    #: Number of the last command that the agent has.
    received: int = 0
    reports: tuple[Said, ...] = ()
    logs: tuple[LogRead, ...] = ()
    #: Seconds to wait for a command if there is none.
    wait_s: float = 0.0
    by: str = ""


class Exchanged(Message, frozen=True):
    """Answer to ``Exchange``."""

    commands: tuple[Told, ...] = ()
    reads: tuple[ReadLog, ...] = ()
    #: Number of the last report that is durable.
    acknowledged: int = 0
    #: Why the session is over; the agent ends everything and may join as a new one. Empty: it goes on.
    over: str = ""
    #: Whether the agent is to leave for good, as it does on SIGTERM: the room that it runs in is given back.
    leave: bool = False


class Leave(Message, frozen=True):
    """No process is left on the agent's machine, and none will be started in this session."""

    session: str
    by: str = ""


class Left(Message, frozen=True):
    """Answer to ``Leave``."""


# -- requests of the API and of administrators ------------------------------------------------------------


class FindLog(Message, frozen=True):
    """Asks for a part of a replica's output, wherever it is."""

    job: str
    attempt: int
    rank: int
    stream: Stream
    offset: int
    limit: int


class LogFound(Message, frozen=True):
    """Answer to ``FindLog``. ``unreachable``: the machine that has it, if that does not answer."""

    part: LogSlice | None = None
    unreachable: str = ""


class ListAgents(Message, frozen=True):
    """Asks which machines have joined."""


class AgentLine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    nodes: tuple[str, ...]
    session: str
    machine: str
    version: str
    #: Seconds since it was last heard, and until its replicas are taken to be gone if it is not heard again.
    silent_s: float
    lease_left_s: float
    #: Whether it sees the place of checkpoints.
    shares_checkpoints: bool
    unit: str = ""
    #: Seconds until the machine is taken away; None: it stays.
    remaining_s: float | None = None


class WaitingLine(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that waits for room, and the engine's own reason."""

    job: str
    attempt: int
    units: tuple[str, ...]
    reason: str


class AgentsListed(Message, frozen=True):
    """Answer to ``ListAgents``."""

    agents: tuple[AgentLine, ...] = ()
    waiting: tuple[WaitingLine, ...] = ()
    #: What keeps the engine from answering; empty: nothing.
    engine_trouble: str = ""


class DeclareGone(Message, frozen=True):
    """An administrator vouches that no process is left on a node's machine."""

    node: str


class Declared(Message, frozen=True):
    """Answer to ``DeclareGone``; ``error``: why nothing was done."""

    error: str = ""


HubRequest = Join | Exchange | Leave | FindLog | ListAgents | DeclareGone
HubReply = Joined | Exchanged | Left | LogFound | AgentsListed | Declared

reply_decoder: msgspec.json.Decoder[HubReply] = msgspec.json.Decoder(HubReply)

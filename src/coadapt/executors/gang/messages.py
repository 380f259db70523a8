"""Messages between a gang and the machines that run its replicas. They may travel over a network.

They hold no path, process number or device of a machine; addresses are those that a machine itself offered for the
rendezvous. A machine carries out the commands of one attempt in order, and reports in the order of events; a report
that is repeated has no effect, since the names and numbers in it are never used again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from coadapt.executors.gang.replica_seats import Seat
from coadapt.model import Placement


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base class of all messages."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One replica to start. Its ``name`` is never used again in its attempt."""

    name: str
    #: Names its output: its rank for a worker, unless another that still runs has it.
    number: int
    seat: Seat
    #: Members of its role on its node, itself included, in order of local rank: their devices are visible to it.
    beside: tuple[str, ...]


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """Where replicas meet, as the machine that hosts it reports."""

    address: str
    port: int
    #: The store by which they are resized in place; empty: they cannot be.
    store: str = ""
    #: Seals what replicas write to the store and send each other.
    secret: str = ""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Tells replicas who is a member of the next generation, in order of rank, and on which of its nodes."""

    kind: str = "resize"
    generation: int
    members: tuple[str, ...]
    nodes: tuple[int, ...]


# -- commands: from the gang to a machine ----------------------------------------------------------------


class RunSetup(Message, frozen=True):
    """Run the job's set-up as ``member``; answered by ``SetupEnded`` or ``CannotStart``."""

    member: str


class OpenRendezvous(Message, frozen=True):
    """Open a rendezvous; answered by ``RendezvousOpened`` with this number, or ``CannotStart``."""

    number: int


class StartReplicas(Message, frozen=True):
    """Take the devices of all these, then start them one after the other; answered by ``ReplicasStarted`` and ``CannotStart``."""

    members: tuple[Member, ...]
    rendezvous: Rendezvous
    #: How often all replicas of the attempt were restarted.
    restarts: int
    #: The generation that newcomers join; 0: all start together.
    join: int = 0


class SignalMembers(Message, frozen=True):
    """Ask these processes to end, or kill them."""

    members: tuple[str, ...]
    signal: Literal["terminate", "kill"]


class ClearMembers(Message, frozen=True):
    """These members have exited: kill processes they left; answered by ``MembersGone``."""

    members: tuple[str, ...]


class ClearAttempt(Message, frozen=True):
    """All members have exited: end processes they left; answered by ``AttemptGone`` with this number when none is left."""

    number: int
    #: Send SIGTERM first; False: it was sent before.
    terminate: bool
    kill_in_s: float


class ReleaseDevices(Message, frozen=True):
    """No process of these members is left: their devices are free."""

    members: tuple[str, ...]


class DumpStacks(Message, frozen=True):
    """Ask processes for their stacks; answered by ``StacksDumped``. ``ranks``: of members here."""

    ranks: dict[str, int]


class MarkOutput(Message, frozen=True):
    """Remember the length of these members' output: if one becomes the first replica, what follows is the attempt's."""

    members: tuple[str, ...]


class FollowOutput(Message, frozen=True):
    """Read measurements from the output of ``member``, which from now on reports for the attempt, at ``placement``.

    Reading starts at the member's mark, if it has one, else at its start. A machine without the member reads nothing.
    """

    member: str
    placement: Placement


class AskStore(Message, frozen=True):
    """Whether all ``keys`` are in the store, or write a ``notice`` there; answered by ``StoreAnswered`` with this number."""

    number: int
    restarts: int
    keys: tuple[str, ...] = ()
    notice: Notice | None = None


Command = (
    RunSetup
    | OpenRendezvous
    | StartReplicas
    | SignalMembers
    | ClearMembers
    | ClearAttempt
    | ReleaseDevices
    | DumpStacks
    | MarkOutput
    | FollowOutput
    | AskStore
)


# -- reports: from a machine to the gang -----------------------------------------------------------------


class SetupEnded(Message, frozen=True):
    """The setup has ended, with its exit code (negative: killed by that signal) and its last lines, secrets masked."""

    member: str
    code: int
    lines: str = ""


class RendezvousOpened(Message, frozen=True):
    """Answer to ``OpenRendezvous``: the store listens."""

    number: int
    rendezvous: Rendezvous


class RendezvousLost(Message, frozen=True):
    """The store opened under this number is gone: replicas can no longer coordinate."""

    number: int


class ReplicasStarted(Message, frozen=True):
    """These replicas run."""

    members: tuple[str, ...]


class CannotStart(Message, frozen=True):
    """These replicas could not be started; without members: the rendezvous asked for by ``number`` could not be opened."""

    members: tuple[str, ...]
    reason: str
    number: int = 0


class ReplicaExited(Message, frozen=True):
    """Its first process has ended; others that it had started may be left."""

    member: str
    code: int
    #: Its last lines, secrets masked.
    lines: str = ""
    #: The kernel killed a process for lack of memory a moment ago.
    out_of_memory: bool = False
    #: Whether its machine had asked it to stop while it ran, and it did not say that it is done; None: of an older release.
    asked: bool | None = None


class MembersGone(Message, frozen=True):
    """No process of these members is left."""

    members: tuple[str, ...]


class AttemptGone(Message, frozen=True):
    """No process of the attempt is left on this machine; see ``ClearAttempt``."""

    number: int


class StacksDumped(Message, frozen=True):
    """The stacks of the attempt's processes."""

    text: str


class StoreAnswered(Message, frozen=True):
    """Answer to ``AskStore``; ``ok`` False: the store cannot be asked."""

    number: int
    ok: bool = True
    there: bool = False


Report = (
    SetupEnded
    | RendezvousOpened
    | RendezvousLost
    | ReplicasStarted
    | CannotStart
    | ReplicaExited
    | MembersGone
    | AttemptGone
    | StacksDumped
    | StoreAnswered
)

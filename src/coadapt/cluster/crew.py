"""The replicas of an attempt as a whole: seats, devices and environments, given out together."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from coadapt.cluster import environment
from coadapt.cluster.devices import Devices, Taken, is_virtual
from coadapt.cluster.environment import Seat
from coadapt.cluster.membership import seated
from coadapt.cluster.protocol import Launch
from coadapt.cluster.replica import Child, Replica
from coadapt.cluster.stores import Store
from coadapt.model import Placement


class Crew:
    """Starts replicas of one attempt; knows which devices it holds."""

    def __init__(
        self, job: str, attempt: int, launch: Launch, token: str, *, logs: Path, devices: Devices
    ) -> None:
        self.launch, self.logs, self.devices = launch, logs, devices
        self.common = environment.of_job(launch, token, job, attempt)
        #: Present replicas, in order of rank.
        self.replicas: list[Replica] = []
        self.store: Store | None = None
        self.generation = 0
        #: How often all replicas were started anew.
        self.restarts = -1
        self._held: list[Taken] = []
        #: Names of members are never used again.
        self._members = 0
        self._port = 0

    @property
    def first(self) -> Replica | None:
        """The replica that speaks for all."""
        return self.replicas[0] if self.replicas else None

    def prepare(self) -> Child:
        """Starts the set-up."""
        child = Child("setup", self.logs)
        child.start(self.launch.setup, self.common, workdir=self._workdir())
        return child

    def start(self, placement: Placement) -> Iterator[Replica]:
        """Starts all replicas of ``placement``, one after the other; OSError or InputError where one cannot."""
        self.replicas, self.generation, self.restarts = [], 0, self.restarts + 1
        self._port = _free_port()
        if self.launch.checkpoints:
            Path(self.launch.checkpoints).mkdir(mode=0o700, parents=True, exist_ok=True)
        seats = environment.seats(placement)
        taken = [self._take(seat) for seat in seats]
        for number, seat in enumerate(seats):
            replica = self._launch(number, seat, taken[number], _beside(seat, seats, taken), {})
            self.replicas.append(replica)
            yield replica

    def join(self, nodes: Sequence[str], staying: Sequence[Replica], generation: int) -> Iterator[Replica]:
        """Starts newcomers on ``nodes``, for a generation that begins with those that stay."""
        gpu_type = self.replicas[0].seat.gpu_type
        seats = seated([*(replica.seat.node for replica in staying), *nodes], gpu_type)
        new = seats[len(staying) :]
        taken = [*(replica.taken for replica in staying), *(self._take(seat) for seat in new)]
        used = {replica.number for replica in self.replicas}
        for seat in new:
            number = seat.rank if seat.rank not in used else min(set(range(len(used) + 1)) - used)
            used.add(number)
            joins = {"COADAPT_JOIN": str(generation)}
            yield self._launch(number, seat, taken[seat.rank], _beside(seat, seats, taken), joins)

    def become(self, members: Sequence[Replica], generation: int) -> None:
        """These are the replicas from here on, in order of rank."""
        nodes = [replica.seat.node for replica in members]
        for replica, seat in zip(members, seated(nodes, members[0].seat.gpu_type), strict=True):
            replica.seat = seat
        self.replicas, self.generation = list(members), generation

    def give_back(self, replica: Replica | None = None) -> None:
        """No process of the replica is left; of the whole attempt, if none is named."""
        gone = list(self._held) if replica is None else [replica.taken]
        for taken in gone:
            self._held.remove(taken)
            self.devices.give_back(taken)

    def _take(self, seat: Seat) -> Taken:
        taken = self.devices.take(seat.node, self.launch.gpus.get(seat.role, 1), seat.share)
        self._held.append(taken)
        return taken

    def _launch(
        self, number: int, seat: Seat, taken: Taken, beside: Sequence[int], more: dict[str, str]
    ) -> Replica:
        member, self._members = f"m{self._members}", self._members + 1
        replica = Replica(number, seat, taken, member, self.logs)
        cores, virtual = self.devices.cores(taken), is_virtual(seat.node)
        place = environment.of_seat(
            seat, self.launch, port=self._port, cores=len(cores) if cores else None, virtual=virtual
        )
        envs = {
            **self.common,
            **place,
            # all of the job's on this node, so that LOCAL_RANK finds its own as under torchrun
            **self.devices.visible(seat.node, beside),
            **({"COADAPT_STORE": self.store.address} if self.store is not None else {}),
            "COADAPT_MEMBER": member,
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            **more,
        }
        replica.start(self.launch.command, envs, workdir=self._workdir(), cores=cores)
        return replica

    def _workdir(self) -> str:
        workdir = self.launch.workdir
        if workdir and not os.path.isdir(workdir):  # noqa: PTH112 - never raises
            raise FileNotFoundError(f"the job's code is not here: {Path(workdir).name}")
        return workdir


def _beside(seat: Seat, seats: Sequence[Seat], taken: Sequence[Taken]) -> list[int]:
    """Devices of the job on the seat's node, in order of local rank."""
    same = [t for s, t in zip(seats, taken, strict=True) if (s.node, s.role) == (seat.node, seat.role)]
    return [number for each in same for number in each.numbers]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

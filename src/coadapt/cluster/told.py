"""What the first replica of an attempt tells on its standard output, as it goes on."""

from __future__ import annotations

from collections.abc import Mapping

from coadapt.cluster.follower import Follower
from coadapt.cluster.protocol import Launch
from coadapt.cluster.readings import Readings
from coadapt.cluster.replica import Replica
from coadapt.model import Measurement, Placement


class Told:
    """Follows whichever replica is the first at present."""

    def __init__(self, launch: Launch) -> None:
        self.readings = Readings(launch)
        self._first = ""
        self._follower: Follower | None = None
        #: Of one that was the first before.
        self._last_words: list[str] = []

    def listen_to(self, replica: Replica | None, offsets: Mapping[str, int] | None = None) -> None:
        """From its start on: what an earlier process wrote to the same file has been read, or was not the first's.

        ``offsets``: where those begin that have run before, by member.
        """
        if replica is not None and replica.member == self._first:
            return
        if self._follower is not None:
            self._last_words += self._follower.lines()
        if replica is None:
            self._first, self._follower = "", None
        else:
            begin = (offsets or {}).get(replica.member, replica.out_from)
            self._first, self._follower = replica.member, Follower(replica.out, begin)

    def more(self, placement: Placement, now: float) -> list[Measurement]:
        """What it has told since the last time."""
        lines, self._last_words = self._last_words, []
        if self._follower is not None:
            lines += self._follower.lines()
        return self.readings.read(lines, placement, now) if lines else []

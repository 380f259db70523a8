"""Measurements on their way to the controller: batched, never in the way of a step, and no matter if nobody listens.

With ``COADAPT_URL`` reports are posted there with the job's token (``COADAPT_JOB_TOKEN``) by a thread; what cannot be
delivered waits, the newest first kept, and is tried again less and less often. Under a scheduler without a URL they are
``COADAPT {json}`` lines on standard output. Alone nothing is sent.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import urllib.request
from collections import deque

from coadapt.model import Measurement
from coadapt.torch.place import Place
from coadapt.wire.agent import Report, encode, to_line

log = logging.getLogger(__name__)
_KEPT = 256
_TIMEOUT_S = 5.0
_FIRST_S, _SLOWEST_S = 1.0, 60.0


class Reporter:
    """Of the first replica; on the others nothing is ever put in."""

    def __init__(self, place: Place) -> None:
        self._place, self._number = place, 0
        self._url, self._token = os.environ.get("COADAPT_URL", ""), os.environ.get("COADAPT_JOB_TOKEN", "")
        self._lines = bool(place.job) and not self._url
        self._waiting: deque[Report] = deque(maxlen=_KEPT)
        self._more = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    @property
    def listening(self) -> bool:
        """Whether anybody is told."""
        return bool(self._url) or self._lines

    def put(self, measurements: tuple[Measurement, ...], decisions: tuple[str, ...] = ()) -> None:
        """Hands a report over and returns at once."""
        if not self.listening or not (measurements or decisions):
            return
        self._number += 1
        report = Report(
            job=self._place.job,
            attempt=self._place.attempt,
            number=self._number,
            measurements=measurements,
            decisions=decisions,
        )
        if self._lines:
            # one write, so that lines of the script do not fall into it
            sys.stdout.write(to_line(report) + "\n")
            sys.stdout.flush()
            return
        self._waiting.append(report)
        self._idle.clear()
        self._more.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, daemon=True, name="coadapt-reports")
            self._thread.start()

    def flush(self, patience_s: float = 2.0) -> None:
        """Gives what is waiting a last, short chance."""
        if self._thread is not None:
            self._idle.wait(patience_s)

    def _send(self) -> None:
        pause = _FIRST_S
        while True:
            self._more.wait()
            self._more.clear()
            while self._waiting:
                report = self._waiting.popleft()
                if self._posted(report):
                    pause = _FIRST_S
                    continue
                if len(self._waiting) < _KEPT:
                    self._waiting.appendleft(report)
                time.sleep(pause)
                pause = min(2 * pause, _SLOWEST_S)
            self._idle.set()

    def _posted(self, report: Report) -> bool:
        request = urllib.request.Request(
            self._url,
            data=encode(report),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                # whatever it says, it has taken it; an answer that is not ours is not read
                return bool(200 <= answer.status < 300)
        except (OSError, ValueError) as error:
            if self._number <= 1 or report.number == self._number:
                log.debug("report %d was not taken: %s", report.number, error)
            return False
        except Exception as error:  # http.client raises its own kinds for garbage
            log.debug("report %d: the answer was garbage: %s", report.number, error)
            return False

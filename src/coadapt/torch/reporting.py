"""Measurements on their way to the controller: batched, never in the way of a step, and no matter if nobody listens.

With ``COADAPT_URL`` a job's reports are posted to ``/v1/jobs/JOB/reports`` there, with the job's token, by a thread: one at a time, in
their order. What is not taken is tried again less and less often; meanwhile the newest ones are kept. Under a scheduler
without a URL they are ``COADAPT {json}`` lines on standard output. Alone nothing is sent. (docs/agent-protocol.md)
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import urllib.error
import urllib.request
from collections import deque
from urllib.parse import quote

from coadapt.errors import InputError
from coadapt.model import Measurement
from coadapt.torch.place import Place
from coadapt.wire.agent import Report, encode, to_line

log = logging.getLogger(__name__)
_KEPT = 256
_TIMEOUT_S = 5.0
#: Bytes of a refusal that are read.
_MOST_ANSWER = 4096
#: Replicas that are started anew within an attempt count on from a multiple of this.
_NUMBERS = 1_000_000
_FIRST_S, _SLOWEST_S = 1.0, 60.0
#: Answers after which the same report would never be taken: malformed, of an attempt that was replaced, too large.
_REFUSED = frozenset([400, 409, 410, 413, 422])


class Reporter:
    """Of the first replica; on the others nothing is ever put in."""

    def __init__(self, place: Place) -> None:
        self._place = place
        #: The last report's; they count within an attempt, whoever sends them.
        self.number = _NUMBERS * place.restarts
        self._url, self._token = _address(place), os.environ.get("COADAPT_JOB_TOKEN", "")
        self._lines = bool(place.job) and not self._url
        self._waiting: deque[Report] = deque(maxlen=_KEPT)
        self._more, self._hurry = threading.Event(), threading.Event()
        #: Nothing is waiting or on its way; with the lock, so that it is not said of a report that comes meanwhile.
        self._idle, self._lock = threading.Event(), threading.Lock()
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
        self.number += 1
        report = Report(
            job=self._place.job,
            attempt=self._place.attempt,
            number=self.number,
            measurements=measurements,
            decisions=decisions,
        )
        if self._lines:
            # one write, so that lines of the script do not fall into it
            sys.stdout.write(to_line(report) + "\n")
            sys.stdout.flush()
            return
        with self._lock:
            self._waiting.append(report)
            self._idle.clear()
        self._more.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, daemon=True, name="coadapt-reports")
            self._thread.start()

    def flush(self, patience_s: float = 2.0) -> None:
        """Gives what is waiting a last, short chance."""
        if self._thread is not None:
            self._hurry.set()
            self._idle.wait(patience_s)

    def _send(self) -> None:
        pause = _FIRST_S
        while True:
            self._more.wait()
            self._more.clear()
            while self._waiting:
                report = self._waiting.popleft()
                if self._settled(report):
                    pause = _FIRST_S
                    continue
                if len(self._waiting) < _KEPT:
                    self._waiting.appendleft(report)
                self._hurry.wait(pause)
                self._hurry.clear()
                pause = min(2 * pause, _SLOWEST_S)
            with self._lock:
                if not self._waiting:
                    self._idle.set()

    def _settled(self, report: Report) -> bool:
        """Whether it was taken, or never will be."""
        request = urllib.request.Request(
            self._url,
            data=encode(report),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                # whatever it says, it has taken it; what else it says is not read
                return bool(200 <= answer.status < 300)
        except urllib.error.HTTPError as error:
            why = _said(error)
            if error.code in _REFUSED:
                log.warning("the controller refuses report %d: %d %s", report.number, error.code, why)
                return True
            log.debug("report %d was not taken: %s", report.number, error)
        except Exception as error:  # http.client and ssl raise their own kinds for garbage
            log.debug("report %d was not taken: %s", report.number, error)
        return False


def _said(error: urllib.error.HTTPError) -> str:
    """The controller's own line on what is wrong; else the status in words."""
    try:
        with error:
            return str(json.loads(error.read(_MOST_ANSWER))["error"])
    except Exception:  # whoever answers may answer anything, or break off
        return error.reason


def _address(place: Place) -> str:
    """Where this job's reports go; empty where it has no name, or there is nobody."""
    base = os.environ.get("COADAPT_URL", "")
    if not base or not place.job:
        return ""
    if not base.startswith(("http://", "https://")):
        raise InputError(f"COADAPT_URL={base!r}: it must begin with http:// or https://")
    return f"{base.rstrip('/')}/v1/jobs/{quote(place.job, safe='')}/reports"

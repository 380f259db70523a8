"""Sends reports to the controller in the background; training continues whether or not they are received.

With ``COADAPT_URL`` a thread posts a job's reports to ``/v1/jobs/JOB/reports`` there, with the job's token, one at a time and in order. A
report that was not accepted is retried with growing pauses; meanwhile the newest ones are queued. Under a scheduler without a
URL reports are ``COADAPT {json}`` lines on standard output. Without a scheduler nothing is sent. (docs/agent-protocol.md)
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import urllib.request
from collections import deque
from urllib.parse import quote

from coadapt.errors import InputError
from coadapt.model import Measurement
from coadapt.model.measurement import reportable
from coadapt.torch.elastic.process_group import Place
from coadapt.wire.agent import Report, Variable, encode, to_line

log = logging.getLogger(__name__)
_QUEUE_LENGTH = 256
_TIMEOUT_S = 5.0
#: Bytes of an error response that are read.
_MOST_RESPONSE = 4096
#: Report numbers of replicas that were restarted within an attempt begin at a multiple of this.
_NUMBERS = 1_000_000
_FIRST_S, _SLOWEST_S = 1.0, 60.0
#: Responses after which the same report will never be accepted: malformed, of a replaced attempt, too large.
_REFUSED = frozenset([400, 409, 410, 413, 422])


class Reporter:
    """Owns the queue of reports and the thread that sends them. Used by the first replica only."""

    def __init__(self, place: Place) -> None:
        self._place = place
        #: Number of the last report; numbers grow within an attempt, whichever replica sends them.
        self.number = _NUMBERS * place.restarts
        self._url, self._token = _address(place), os.environ.get(Variable.JOB_TOKEN, "")
        self._lines = bool(place.job) and not self._url
        self._waiting: deque[Report] = deque(maxlen=_QUEUE_LENGTH)
        self._more, self._hurry = threading.Event(), threading.Event()
        #: Set while no report is queued or being sent; the lock keeps it from being set when a report arrives meanwhile.
        self._idle, self._lock = threading.Event(), threading.Lock()
        self._idle.set()
        self._thread: threading.Thread | None = None

    @property
    def listening(self) -> bool:
        """Whether reports go anywhere."""
        return bool(self._url) or self._lines

    def put(self, measurements: tuple[Measurement, ...], decisions: tuple[str, ...] = ()) -> None:
        """Queue a report and return at once."""
        if not self.listening or not (measurements or decisions):
            return
        self.number += 1
        report = Report(
            job=self._place.job,
            attempt=self._place.attempt,
            number=self.number,
            measurements=tuple(map(reportable, measurements)),
            decisions=decisions,
        )
        if self._lines:
            # one write, so that lines of the script do not interleave with it
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
        """Wait at most ``patience_s`` for the queue to be sent."""
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
                if self._post(report):
                    pause = _FIRST_S
                    continue
                if len(self._waiting) < _QUEUE_LENGTH:
                    self._waiting.appendleft(report)
                self._hurry.wait(pause)
                self._hurry.clear()
                pause = min(2 * pause, _SLOWEST_S)
            with self._lock:
                if not self._waiting:
                    self._idle.set()

    def _post(self, report: Report) -> bool:
        """Post a report; False if it should be retried."""
        request = urllib.request.Request(
            self._url,
            data=encode(report),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                # accepted; the body is not read
                return bool(200 <= answer.status < 300)
        except urllib.error.HTTPError as error:
            why = _reason(error)
            if error.code in _REFUSED:
                log.warning("the controller rejected report %d: %d %s", report.number, error.code, why)
                return True
            log.debug("report %d was not delivered and will be retried: %s", report.number, error)
        except Exception as error:  # http.client and ssl have exceptions of their own for malformed responses
            log.debug("report %d was not delivered and will be retried: %s", report.number, error)
        return False


def say_done(place: Place) -> None:
    """Say on standard output that the script has finished, though it was asked to stop; nothing without a scheduler."""
    if place.job:
        sys.stdout.write(to_line(Report(job=place.job, attempt=place.attempt, done=True)) + "\n")
        sys.stdout.flush()


def _reason(error: urllib.error.HTTPError) -> str:
    """The controller's error message; else the reason of the status code."""
    try:
        with error:
            return str(json.loads(error.read(_MOST_RESPONSE))["error"])
    except Exception:  # the response may be anything, or incomplete
        return error.reason


def _address(place: Place) -> str:
    """The URL of this job's reports; empty if the job has no name or there is no controller."""
    base = os.environ.get(Variable.URL, "")
    if not base or not place.job:
        return ""
    if not base.startswith(("http://", "https://")):
        raise InputError(f"COADAPT_URL={base!r}: it must begin with http:// or https://")
    return f"{base.rstrip('/')}/v1/jobs/{quote(place.job, safe='')}/reports"

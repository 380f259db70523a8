"""A replica that writes down when it starts and ends, and proves by a lock that no twin of it is alive.

python recorded_process.py DIR SECONDS [SECONDS of later attempts]; with END_AT_SIZE, other sizes never end
"""

import fcntl
import json
import os
import subprocess
import sys
import time

directory, seconds = sys.argv[1], sys.argv[2:]
job, attempt, rank = (os.environ[key] for key in ("COADAPT_JOB", "COADAPT_ATTEMPT", "RANK"))


def record(what: str) -> None:
    line = {"what": what, "job": job, "attempt": int(attempt), "rank": int(rank), "pid": os.getpid()}
    data = json.dumps({**line, "at": time.monotonic()}).encode() + b"\n"
    fd = os.open(f"{directory}/records", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, data)
    os.close(fd)


lock = os.open(f"{directory}/{job}.{rank}.lock", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    record("start")
except BlockingIOError:
    record("overlap")
    sys.exit(9)
if os.environ.get("HELPER"):
    # in a session of its own, without the lock: only its inherited environment betrays whose it is
    helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    record(f"helper {helper.pid}")
if os.environ.get("END_AT_SIZE", os.environ["WORLD_SIZE"]) != os.environ["WORLD_SIZE"]:
    time.sleep(600)  # until it is stopped
time.sleep(float(seconds[min(int(attempt), len(seconds)) - 1]))  # the work of the job
record("end")

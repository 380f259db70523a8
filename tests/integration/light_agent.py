"""A replica that does all an agent does in a resize in place, without PyTorch. Ends once the last size has run and, if it is $HELD, it is let.

Writes down every process that starts, so that none can be left behind unseen: coadapt
"""

import json
import os
import sys
import time
from pathlib import Path

meeting, member = os.environ["PYTHON_MEETING"], os.environ["COADAPT_MEMBER"]
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
generation, last = int(os.environ.get("COADAPT_JOIN", "0")), int(os.environ["LAST_SIZE"])


def path(key: str) -> str:
    return f"{meeting}/{restarts}-{key}"


def put(key: str) -> None:
    Path(path(key)).touch()


def notice(number: int) -> list[str] | None:
    if not Path(path(f"notice{number}")).exists():
        return None
    return json.loads(Path(path(f"notice{number}")).read_text())["members"]


with Path(f"{meeting}/pids").open("a") as pids:
    pids.write(f"{os.getpid()}\n")
members = None
if generation:
    put(f"ready{generation}-{member}")
    while (members := notice(generation)) is None:
        time.sleep(0.01)
first = members[0] == member if members else os.environ["RANK"] == "0"
size = len(members) if members else int(os.environ["WORLD_SIZE"])
while True:
    if first:
        put(f"listening{generation}")  # as an agent does it: who is told that it runs may resize it at once
        if generation:
            put(f"running{generation}")
        print(f'COADAPT {{"epoch": {generation}}}', flush=True)
    if size == last and generation >= int(os.environ["LAST_GENERATION"]):
        while os.environ.get("HELD") and not Path(f"{meeting}/end").exists():
            time.sleep(0.01)
        sys.exit(0)
    while (members := notice(generation + 1)) is None:
        time.sleep(0.01)
    generation += 1
    if member not in members:
        sys.exit(143)
    first, size = members[0] == member, len(members)

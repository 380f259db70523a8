"""``python -m tests.digests.make_live``: writes ``live.jsonl``, the log of a live cluster that was killed again and again.

Its times are those of real processes, so that every run makes another log: the file is made once and then only folded.
Paths and the user's name are replaced; a log of this cluster names no host.
"""

from __future__ import annotations

import getpass
import sys
import tempfile
from pathlib import Path

from benchmarks.chaos_check import stored
from benchmarks.chaos_rounds import Rounds
from benchmarks.chaos_world import HERE as SCRIPTS

from coadapt.model import decode
from tests.digests.table import HERE

FILE = HERE / "live.jsonl"
POLICY, OPTIONS = "coadapt", ("change_s=1", "every_s=2", "horizon_s=10")


def main() -> None:
    if FILE.exists():
        sys.exit(f"{FILE} exists; remove it to make another one")
    lines: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="coadapt-chaos-") as name:
        rounds = Rounds(Path(name), 11, POLICY, OPTIONS)
        end = rounds.world.close

        def close() -> None:
            # what the cluster stood on goes with its end
            lines.extend(data for _, data in stored(rounds.world.home))
            end()

        rounds.world.close = close  # type: ignore[method-assign]
        found = rounds.run(8, round_s=2.5, longest_s=3.0)
        replaced = {name: "/chaos", str(SCRIPTS): "/scripts", sys.executable: "python"}
        replaced[f'"user":"{getpass.getuser()}"'] = '"user":"someone"'
        for private, public in replaced.items():
            lines = [line.replace(private.encode(), public.encode()) for line in lines]
    for line in lines:
        decode(line)
    FILE.write_bytes(b"".join(line + b"\n" for line in lines))
    print({name: value for name, value in found.items() if name != "answers"})


if __name__ == "__main__":
    main()

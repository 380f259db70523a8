"""``python -m coadapt.torch.tools.profile_operations --seconds 60 script.py ARGS``: where a script's time goes, by operation.

After Fathom (Adolf et al., IISWC 2016): the share of each *type* of operation, itself only, over a whole run. The
script runs as ``__main__`` under PyTorch's own profiler and is ended at the time limit as if by Ctrl-C.
"""

from __future__ import annotations

import _thread
import argparse
import os
import runpy
import sys
import threading
import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from coadapt.wire.tool_messages import Answer, OperationShare, Refused, RunProfiled, encode


def main() -> None:
    """Profile the script in the arguments and print its time by operation as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "wb")
    # the script's output goes to standard error: standard output is for our messages
    os.dup2(2, 1)
    answer = run(given.script, given.arguments, given.seconds)
    answers.write(encode(answer) + b"\n")
    answers.flush()


def run(script: str, arguments: list[str], seconds: float) -> Answer:
    """Profile a script with ``arguments`` for at most ``seconds``."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))  # noqa: PTH100, PTH120 - as python itself does
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
    ended = threading.Event()

    def end() -> None:
        ended.set()
        _thread.interrupt_main()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    began = time.perf_counter()
    failure: BaseException | None = None
    with profile(activities=kinds) as profiler:
        timer.start()
        try:
            runpy.run_path(script, run_name="__main__")
        except KeyboardInterrupt as error:
            failure = None if ended.is_set() else error
        except SystemExit as error:
            failure = error if error.code not in (0, None) else None
        except Exception as error:
            failure = error
        finally:
            timer.cancel()
    wall = time.perf_counter() - began
    if failure is not None:
        return Refused(
            reason=f"{script} failed: {type(failure).__name__}: {' '.join(str(failure).split())[:200]}"
        )
    on_gpu = len(kinds) > 1
    found = sorted(_shares(profiler, on_gpu), key=lambda each: -each.seconds)
    return RunProfiled(
        operations=tuple(found), wall_s=wall, device="cuda" if on_gpu else "cpu", cut=ended.is_set()
    )


def _shares(profiler: Any, on_gpu: bool) -> list[OperationShare]:
    found = []
    for event in profiler.key_averages():
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        name = event.key.removeprefix("aten::")
        if spent > 0 and not name.startswith(("ProfilerStep", "[memory]", "cudaDevice")):
            found.append(OperationShare(name=name, seconds=spent / 1e6, calls=int(event.count)))
    return found


if __name__ == "__main__":
    main()

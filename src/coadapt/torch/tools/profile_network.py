"""``python -m coadapt.torch.tools.profile_network``: latency and bandwidth of an all-reduce, in JSON.

Between two processes of this machine; or, started by ``torchrun`` on two machines (RANK is then set), between
them. Time over message size is fitted by latency + bytes / bandwidth: of two replicas each sends and receives
the message once, 2 X (N - 1) / N = X.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import numpy as np
import torch
import torch.distributed as distributed
import torch.multiprocessing as processes
from scipy.optimize import nnls

from coadapt.torch.elastic.rendezvous_process import hosted
from coadapt.wire.tool_messages import LinkMeasured, encode

_SIZES = tuple(2**power for power in range(10, 26, 3))
_REPEATS = 7
_FP32_BYTES = 4


def main() -> None:
    """Measure the all-reduce and print its latency and bandwidth as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    backend = parser.parse_args().backend
    if "RANK" in os.environ:
        _join(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), backend)
        return
    # this process hosts the store, as torchrun does: no port has to be guessed
    store = hosted()
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    processes.spawn(_join, args=(2, backend), nprocs=2)


def _join(rank: int, world: int, backend: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(backend, rank=rank, world_size=world)
    seconds = tuple(_all_reduce(size) for size in _SIZES)
    distributed.destroy_process_group()
    if rank == 0:
        sys.stdout.buffer.write(encode(fitted(_SIZES, seconds, world, backend)) + b"\n")
        sys.stdout.buffer.flush()


def _all_reduce(size_bytes: int) -> float:
    message = torch.ones(size_bytes // _FP32_BYTES)
    taken = []
    for _ in range(_REPEATS + 1):
        distributed.barrier()
        began = time.perf_counter()
        distributed.all_reduce(message)
        taken.append(time.perf_counter() - began)
        message.fill_(1.0)
    return statistics.median(taken[1:])


def fitted(sizes: tuple[int, ...], seconds: tuple[float, ...], world: int, backend: str) -> LinkMeasured:
    """Fit latency and bandwidth to measured times by least relative squares.

    Args:
        sizes: Bytes of the messages.
        seconds: Time of an all-reduce of each.
        world: Number of processes.
        backend: PyTorch's backend.
    """
    times = np.array(seconds)
    messages, moved = 2 * (world - 1), 2 * (world - 1) / world * np.array(sizes)
    system = np.column_stack([np.full(len(sizes), float(messages)), moved]) / times[:, None]
    latency, per_byte = nnls(system, np.ones(len(sizes)))[0]
    return LinkMeasured(
        bytes_s=float(1 / max(per_byte, 1e-15)),
        latency_s=float(latency),
        sizes_bytes=sizes,
        seconds=seconds,
        backend=backend,
    )


if __name__ == "__main__":
    main()

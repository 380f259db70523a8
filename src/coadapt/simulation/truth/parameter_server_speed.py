"""Step time of training with parameter servers: Optimus (Peng et al., EuroSys 2018), section 3.2.

With w workers, p servers, m examples per worker, S bytes of parameters, B bytes/s of a server's link:

    T = m * T_example + T_back + 2 * (S/p) / (B/w') + T_update * w'/p + delta * w + delta' * p

Synchronous: m = M/w and w' = w, for all workers send at once; 1/T steps per second. Asynchronous: m = M (each
worker has its own batch), w' = c * w, c the share of workers that talk at the same time; w/T per second.

Where we deviate: T_example holds the part of the backward pass that grows with the examples (Optimus counts it
as constant); servers on one node share its link, the slowest node decides, and what a node's own
workers send stays inside it. With one server per node and no worker beside it this is the formula above.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

import msgspec

from coadapt.errors import InputError, UnknownNameError
from coadapt.model import Fact
from coadapt.simulation.truth.profiles import shipped_file

#: 10 Gbit/s, the usual link of the clusters these systems were published on.
TEN_GIGABIT = 1.25e9


class PsModel(Fact, frozen=True):
    """A model by its paper."""

    parameters: float
    forward_flop: float
    source: str


class PsFile(Fact, frozen=True):
    """The shipped file."""

    about: dict[str, str]
    efficiency: float
    server_bytes_per_s: float
    backward_s: float
    per_worker_s: float
    per_server_s: float
    concurrency: float
    models: dict[str, PsModel]


class PsConstants(Fact, frozen=True):
    """The formula's constants for one model on one kind of hardware."""

    example_s: float
    backward_s: float
    model_bytes: float
    link_bytes_per_s: float
    update_s: float
    per_worker_s: float
    per_server_s: float
    #: Share of asynchronous workers that talk at the same time.
    concurrency: float = 1.0


class ParameterServerTruth:
    """The true behaviour of a job with parameter servers."""

    def __init__(self, constants: PsConstants, *, asynchronous: bool = False) -> None:
        self.constants, self.asynchronous = constants, asynchronous

    def step(self, workers: Sequence[int], servers: Sequence[int], batch: int) -> float:
        """Seconds of one step; entry i of both shapes is node i, a missing one is 0."""
        facts, w, p = self.constants, sum(workers), sum(servers)
        if w < 1 or p < 1:
            raise InputError(
                f"{w} workers and {p} servers; a job with parameter servers needs at least one of each"
            )
        share = facts.concurrency if self.asynchronous else 1.0
        examples = batch if self.asynchronous else batch / w
        part_bytes = facts.model_bytes / p
        busiest = max(
            here * part_bytes * (w - (workers[node] if node < len(workers) else 0))
            for node, here in enumerate(servers)
        )
        return (
            examples * facts.example_s
            + facts.backward_s
            + 2.0 * busiest * share / facts.link_bytes_per_s
            + facts.update_s * share * w / p
            + facts.per_worker_s * w
            + facts.per_server_s * p
        )

    def steps_per_s(self, workers: Sequence[int], servers: Sequence[int], batch: int) -> float:
        """Updates of the parameters per second."""
        rounds = 1.0 / self.step(workers, servers, batch)
        return rounds * sum(workers) if self.asynchronous else rounds


@cache
def shipped_models() -> PsFile:
    """The shipped file, read at first use."""
    data = resources.files("coadapt.simulation.truth").joinpath("data/parameter_servers.json").read_bytes()
    return msgspec.json.decode(data, type=PsFile)


def parameter_server_truth(
    model: str,
    gpu_type: str = "t4",
    *,
    link_bytes_per_s: float = TEN_GIGABIT,
    asynchronous: bool = False,
) -> ParameterServerTruth:
    """Returns the ground truth of a shipped model, from papers and datasheets: a projection, not a measurement.

    Args:
        model: Name of the model.
        gpu_type: Type of the workers' GPUs.
        link_bytes_per_s: Speed of a server's link.
        asynchronous: Asynchronous instead of synchronous training.
    """
    file, gpus = shipped_models(), shipped_file().gpu_types
    if model not in file.models:
        raise UnknownNameError("parameter-server model", model, file.models)
    if gpu_type not in gpus:
        raise UnknownNameError("GPU type", gpu_type, gpus)
    facts = file.models[model]
    model_bytes = 4.0 * facts.parameters
    constants = PsConstants(
        example_s=3.0 * facts.forward_flop / (gpus[gpu_type].fp32_tflops * 1e12 * file.efficiency),
        backward_s=file.backward_s,
        model_bytes=model_bytes,
        link_bytes_per_s=link_bytes_per_s,
        update_s=3.0 * model_bytes / file.server_bytes_per_s,
        per_worker_s=file.per_worker_s,
        per_server_s=file.per_server_s,
        concurrency=file.concurrency,
    )
    return ParameterServerTruth(constants, asynchronous=asynchronous)

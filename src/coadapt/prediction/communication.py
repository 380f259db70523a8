"""Time to exchange gradients: PALEO (Qi et al., ICLR 2017) and the usual collective algorithms.

X bytes of gradients, N replicas, links of B bytes/s (one direction) and latency L:

    central          2 X (N - 1) / B + 2 L                      one server takes and returns everything
    parameter server 2 X max(N / P, 1) / B + 2 L                P servers, each with 1/P of the parameters
    ring             2 X (N - 1) / N / B + 2 (N - 1) L          all-reduce, every link busy
    tree             2 X ceil(log2 N) / B + 2 ceil(log2 N) L    halving and doubling, one message at a time
    hierarchical     ring inside every node, ring between the nodes of what each node summed

With overlap, gradients travel while earlier layers still compute: of the backward pass, which is two thirds of
a step, the share ``overlap`` can hide communication; the first bucket can only leave when it is there.
"""

from __future__ import annotations

import math

from coadapt.errors import InputError, UnknownNameError
from coadapt.model import Fact

METHODS = ("ring", "tree", "hierarchical", "central", "parameter-server")
#: Of a training step, the part in which gradients appear.
BACKWARD_SHARE = 2 / 3


class Link(Fact, frozen=True):
    """One direction of a connection."""

    bytes_s: float
    latency_s: float = 0.0


class Network(Fact, frozen=True):
    """Links inside a node and between nodes, and how many replicas a node holds."""

    inside: Link
    between: Link
    per_node: int = 8

    def nodes(self, replicas: int) -> int:
        """Nodes that ``replicas`` occupy when packed."""
        return -(-replicas // self.per_node)

    def narrowest(self, replicas: int) -> Link:
        """The slowest link that an algorithm without a hierarchy uses."""
        return self.inside if self.nodes(replicas) == 1 else self.between


def central(size_bytes: float, replicas: int, link: Link) -> float:
    """Seconds of an exchange in which one replica receives all gradients and sends all parameters back."""
    if replicas == 1:
        return 0.0
    return 2 * size_bytes * (replicas - 1) / link.bytes_s + 2 * link.latency_s


def parameter_server(size_bytes: float, replicas: int, servers: int, link: Link) -> float:
    """Seconds of one exchange through parameter servers that run on machines of their own.

    A server moves X N / P in and as much out, a worker X in and X out; the slower of the two decides.

    Args:
        size_bytes: Bytes of gradients, X.
        replicas: Workers, N.
        servers: Parameter servers, P, each with an equal part of the parameters.
        link: The connection between a worker and a server.
    """
    if servers < 1:
        raise InputError(f"{servers} parameter servers: at least one is needed")
    busiest = max(replicas / servers, 1.0)
    return 2 * size_bytes * busiest / link.bytes_s + 2 * link.latency_s


def ring(size_bytes: float, replicas: int, link: Link) -> float:
    """Seconds of a ring all-reduce: reduce-scatter, then all-gather."""
    return 2 * (replicas - 1) * (size_bytes / replicas / link.bytes_s + link.latency_s)


def tree(size_bytes: float, replicas: int, link: Link) -> float:
    """Seconds of an all-reduce up a binary tree and down again."""
    levels = math.ceil(math.log2(replicas)) if replicas > 1 else 0
    return 2 * levels * (size_bytes / link.bytes_s + link.latency_s)


def hierarchical(size_bytes: float, replicas: int, network: Network) -> float:
    """Seconds of an all-reduce by rings inside the nodes, then one ring between the nodes."""
    nodes = network.nodes(replicas)
    inside = ring(size_bytes, min(replicas, network.per_node), network.inside)
    return inside + ring(size_bytes, nodes, network.between)


def sync_time(
    method: str, size_bytes: float, replicas: int, network: Network, *, servers: int | None = None
) -> float:
    """Seconds of one exchange of gradients, without overlap with computation.

    Args:
        method: Algorithm: ring, tree, hierarchical, central or parameter-server.
        size_bytes: Bytes of gradients.
        replicas: Replicas that exchange gradients.
        network: Links inside a node and between nodes.
        servers: Parameter servers; None: as many as replicas. Used by parameter-server only.
    """
    if replicas < 1:
        raise InputError(f"{replicas} replicas: at least one is needed")
    link = network.narrowest(replicas)
    if method == "ring":
        return ring(size_bytes, replicas, link)
    if method == "tree":
        return tree(size_bytes, replicas, link)
    if method == "hierarchical":
        return hierarchical(size_bytes, replicas, network)
    if method == "central":
        return central(size_bytes, replicas, link)
    if method == "parameter-server":
        return parameter_server(size_bytes, replicas, servers or replicas, network.between)
    raise UnknownNameError("synchronisation method", method, METHODS)


def exposed(sync_s: float, compute_s: float, overlap: float) -> float:
    """Seconds of an exchange that computation cannot hide; ``overlap`` 0 hides nothing, 1 the whole backward pass."""
    return sync_s - overlap * min(BACKWARD_SHARE * compute_s, sync_s)

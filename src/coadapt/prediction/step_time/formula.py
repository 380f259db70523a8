"""The terms of our step-time model: formula, derivatives, prior and the kernel of its residual.

    T_grad(m)     = a_c + b_c m                                          one backward pass, m examples per GPU
    T_sync(n, K)  = a_r + b_r (K - 2)                                    one node, K > 1 replicas
                    a_n + b_n (1 - 2/K) + d_n log(K/2) + e_n (K - 2)     n > 1 nodes
                    + a_2 + b_2 log(K/2)                                 ... two of them, besides
    T_step        = (T_grad^g + T_sync^g)^(1/g)

The shape is Pollux' (``pollux``); what differs is the network. 1 - 2/K is a ring's traffic,
log K a tree's depth, K its latency: which of them a library uses is not known, so all three are there and the
data choose. Exactly two nodes are measurably slower than three (every pair of replicas shares one link),
so step time need not rise with nodes.

Ten logarithms of coefficients and log(g - 1) are the parameters, each with a Gaussian prior in units of the
job's own compute time: 5 points suffice, and what was not measured stays where jobs of its kind usually are.
What the formula leaves over is a Gaussian process in (log nodes, log K, log m), exponential kernel: it
follows the data where there are some and fades to nothing away from them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.prediction._base import FloatArray, Singles

NAMES = ("a_c", "b_c", "a_r", "b_r", "a_n", "b_n", "d_n", "e_n", "a_2", "b_2", "gamma")
COMPUTE, SYNC, GAMMA = slice(0, 2), slice(2, 10), 10
#: Prior of the logarithms; times in units of the mean compute time, batches of the mean batch (both geometric).
#: Chosen on the tasks bert, cifar10 and imagenet of Pollux; figures hardly move with any of them.
MEANS = np.array([-1.6, -0.4, -1.8, -3.0, -0.4, -1.0, -2.5, -4.7, -1.3, -1.3, 0.2])
DEVIATIONS = np.array([1.2, 1.2, 1.2, 1.2, 1.2, 0.8, 0.8, 0.6, 1.2, 1.2, 0.5])
#: Scatter of log times: of one measurement, and of what the formula leaves over.
NOISE, RESIDUAL = 0.05, 0.10
#: Distances over which the residual is alike: logarithms of nodes, replicas, batch.
_NODES_LENGTH, _REPLICAS_LENGTH, BATCH_LENGTH = 1.0, 1.5, 1.5
#: Node counts that the model distinguishes; others count as the next one below.
NODE_LEVELS = np.array([1, 2, 3, 4, 6, 8, 12, 16])
#: Stands for no time at all, in logarithms.
_LOG_NOTHING = -25.0
#: Logarithm of a ratio that is still a number; synchronisation that much slower is all of a step.
_MOST_LOG = 80.0


def node_level(nodes: npt.ArrayLike) -> npt.NDArray[np.int_]:
    """1-based index into ``NODE_LEVELS``; 0 for no node."""
    return np.asarray(np.searchsorted(NODE_LEVELS, np.asarray(nodes), side="right"))


def sync_terms(nodes: npt.ArrayLike, replicas: npt.ArrayLike) -> FloatArray:
    """T_sync = terms @ its eight coefficients; the last axis is theirs."""
    nodes, replicas = np.broadcast_arrays(np.asarray(nodes), np.asarray(replicas))
    inside, between, two = (nodes == 1) & (replicas > 1), nodes > 1, nodes == 2
    some = np.maximum(replicas, 2)
    beyond, depth = some - 2.0, np.log(some / 2.0)
    return np.stack(
        [
            inside,
            inside * beyond,
            between,
            between * (1 - 2.0 / some),
            between * depth,
            between * beyond,
            two,
            two * depth,
        ],
        axis=-1,
    ).astype(np.float64)


class Logs(NamedTuple):
    """Logarithms of times, and what derivatives need."""

    step: FloatArray
    grad: FloatArray
    sync: FloatArray
    #: Share of the computation in T_step, by its derivative.
    share: FloatArray


def log_times(theta: FloatArray, terms: FloatArray, batch: FloatArray) -> Logs:
    """Logarithms of the formula's times for points (last axis) of jobs (axes before, as in ``theta``)."""
    scale = np.exp(theta[..., :GAMMA])
    gamma = 1 + np.exp(theta[..., GAMMA:])
    grad = np.log(scale[..., 0:1] + scale[..., 1:2] * batch)
    sync_s = (terms @ scale[..., SYNC, None])[..., 0]
    sync = np.log(np.maximum(sync_s, np.exp(_LOG_NOTHING)))
    step = np.logaddexp(gamma * grad, gamma * sync) / gamma
    return Logs(step, grad, sync, np.exp(gamma * (grad - step)))


def place_times(theta: Singles, terms: Singles, batch: Singles) -> tuple[Singles, Singles]:
    """Logarithms of T_grad and T_step of jobs (rows of ``theta``) at batches [job, candidate, place].

    The same as ``log_times`` without what only derivatives need; synchronisation is the same for all of a place.
    """
    scale = np.exp(theta[:, :GAMMA])
    gamma = 1 + np.exp(theta[:, GAMMA, None, None])
    grad = np.log(scale[:, 0, None, None] + scale[:, 1, None, None] * batch)
    # a product of matrices would round by how many jobs there are
    sync_s = (scale[:, SYNC, None] * terms.T).sum(axis=1)
    sync = np.log(np.maximum(sync_s, np.float32(np.exp(_LOG_NOTHING))))
    more = np.minimum(gamma * (sync[:, None, :] - grad), np.float32(_MOST_LOG))
    return grad, grad + np.log(1 + np.exp(more)) / gamma


def derivatives(
    theta: FloatArray, terms: FloatArray, batch: FloatArray, logs: Logs
) -> tuple[FloatArray, FloatArray]:
    """Derivatives of log T_step and log T_grad by the eleven parameters (new last axis).

    With p = share, q = 1 - p: dL/dlog T_grad = p, dL/dlog T_sync = q, dL/dg = (p log T_grad + q log T_sync - L)/g.

    Args:
        theta: The parameters.
        terms: ``sync_terms`` of the points.
        batch: Examples per GPU of the points.
        logs: ``log_times`` at the points.
    """
    scale = np.exp(theta[..., :GAMMA])
    more = np.exp(theta[..., GAMMA:])
    by_grad = np.zeros((*logs.step.shape, len(NAMES)))
    constant = scale[..., 0:1] / np.exp(logs.grad)
    by_grad[..., 0], by_grad[..., 1] = constant, 1 - constant
    by_step = by_grad * logs.share[..., None]
    rest = 1 - logs.share
    by_step[..., SYNC] = (rest / np.exp(logs.sync))[..., None] * terms * scale[..., None, SYNC]
    mixed = logs.share * logs.grad + rest * logs.sync - logs.step
    by_step[..., GAMMA] = mixed * more / (1 + more)
    return by_step, by_grad


def place_kernel(
    nodes: npt.ArrayLike, replicas: npt.ArrayLike, at_nodes: FloatArray, at_replicas: FloatArray
) -> FloatArray:
    """Similarity of places to the measured ones (new last axis); 0 between one, two and more nodes.

    Args:
        nodes: Nodes of each place.
        replicas: Replicas of each place.
        at_nodes: Nodes of the measured places.
        at_replicas: Replicas of the measured places.
    """
    level = NODE_LEVELS[np.maximum(node_level(nodes), 1) - 1]
    at_level = NODE_LEVELS[np.maximum(node_level(at_nodes), 1) - 1]
    same = np.minimum(level, 3)[..., None] == np.minimum(at_level, 3)
    by_nodes = np.abs(np.log(level)[..., None] - np.log(at_level)) / _NODES_LENGTH
    by_replicas = np.abs(np.log(np.maximum(replicas, 1))[..., None] - np.log(at_replicas)) / _REPLICAS_LENGTH
    return np.asarray(same * np.exp(-by_nodes - by_replicas))


def place_coordinates(nodes: npt.ArrayLike, replicas: npt.ArrayLike) -> FloatArray:
    """One, two or more nodes; and the distances that ``place_kernel`` goes by: rows, a column per place."""
    level = NODE_LEVELS[np.maximum(node_level(nodes), 1) - 1]
    by_replicas = np.log(np.maximum(replicas, 1)) / _REPLICAS_LENGTH
    return np.stack([np.minimum(level, 3), np.log(level) / _NODES_LENGTH, by_replicas])


def batch_powers(batch: npt.ArrayLike) -> FloatArray:
    """Powers of batch sizes; ``batch_kernel`` is the smaller of the two ratios of them."""
    return np.asarray(np.asarray(batch, dtype=np.float64) ** (1 / BATCH_LENGTH))


def batch_kernel(batch: npt.ArrayLike, at_batch: FloatArray) -> FloatArray:
    """Similarity of batch sizes to the measured ones (new last axis)."""
    apart = np.log(np.asarray(batch, dtype=np.float64))[..., None] - np.log(at_batch)
    return np.asarray(np.exp(-np.abs(apart) / BATCH_LENGTH))

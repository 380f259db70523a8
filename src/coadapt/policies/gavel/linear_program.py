"""Linear programs: the optimum by HiGHS, and of its many solutions one in the middle.

A program of Gavel has many solutions with the same objective, and which of them is taken moves the average completion
time by some per cent. A simplex method answers with a corner, where many jobs have a time fraction of 0. The released
code uses an interior-point solver (ECOS), which ends in the middle of the solutions. ``maximise`` with ``central``
follows the same path: Mehrotra's predictor and corrector on the homogeneous self-dual embedding (Domahidi, Chu and
Boyd, "ECOS: an SOCP solver for embedded systems", 2013), for linear constraints only. With slack s and multipliers z

    -G'z - c tau = 0,   s + G x - h tau = 0,   kappa + c x + h z = 0,   s_i z_i = mu,  tau kappa = mu,   mu -> 0

and x / tau is the answer. The number of steps is bounded by a count. Where the path does not arrive, or its objective is
not that of HiGHS, or there are more than ``_MOST_CENTRAL`` variables, the corner of HiGHS is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
_Solve = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]

#: A step of the path solves a dense system: beyond so many variables a corner is the answer.
_MOST_CENTRAL = 1500
_MOST_STEPS = 100
#: Residuals and gap at which the path has arrived, as in the released solver.
_ENOUGH = 1e-8
#: Share of the way to the edge that a step goes.
_STEP = 0.99
#: Objectives may differ by so much from the optimum, relative to it.
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution and its objective."""

    x: FloatArray
    value: float


def maximise(
    gain: FloatArray, matrix: FloatArray, bound: FloatArray, *, central: bool = False
) -> Solution | None:
    """Maximises gain x with matrix x <= bound and x >= 0; None if nothing satisfies that."""
    # imported here: it takes longer than many a command that never solves anything
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    sparse: Any = csr_array(matrix)  # the types of linprog know dense matrices only
    result = linprog(-gain, A_ub=sparse, b_ub=bound, bounds=(0, None), method="highs")
    if result.x is None or result.status != 0:
        return None
    corner = Solution(np.asarray(result.x), float(gain @ result.x))
    if not central or len(gain) > _MOST_CENTRAL:
        return corner
    found = central_solution(gain, matrix, bound)
    if found is None or abs(float(gain @ found) - corner.value) > _SAME * max(1.0, abs(corner.value)):
        return corner
    return Solution(found, float(gain @ found))


def central_solution(gain: FloatArray, matrix: FloatArray, bound: FloatArray) -> FloatArray | None:
    """Returns the solution at the end of the central path; None if the path does not arrive."""
    count = len(gain)
    g, h, c, scale = _equilibrated(
        np.vstack([-np.eye(count), matrix]), np.concatenate([np.zeros(count), bound]), -gain
    )
    largest_h, largest_c = max(1.0, float(np.linalg.norm(h))), max(1.0, float(np.linalg.norm(c)))
    solve = _normal_equations(g, np.ones(len(h)))
    if solve is None:
        return None
    x, off = solve(np.zeros(count), h)
    s, z = _inside(-off), _inside(solve(-c, np.zeros(len(h)))[1])
    tau = kappa = 1.0
    for _ in range(_MOST_STEPS):
        of_dual, of_primal = -g.T @ z - c * tau, s + g @ x - h * tau
        of_gap, cost = kappa + float(c @ x + h @ z), abs(float(c @ x)) / tau
        left, gap = max(_norm(of_primal) / largest_h, _norm(of_dual) / largest_c) / tau, float(s @ z) / tau**2
        if left < _ENOUGH and (gap < _ENOUGH or gap < _ENOUGH * cost):
            return np.asarray(np.maximum(x / tau / scale, 0.0))
        mu, ratio = (float(s @ z) + kappa * tau) / (len(h) + 1), s / z
        solve = _normal_equations(g, ratio)
        if solve is None:
            return None
        x1, z1 = solve(-c, h)
        weight = kappa / tau - float(c @ x1 + h @ z1)
        # predictor: straight to the edge
        x2, z2 = solve(of_dual, s - of_primal)
        d_tau = (of_gap - kappa + float(c @ x2 + h @ z2)) / weight
        d_z = z2 + d_tau * z1
        d_s, d_kappa = -s - ratio * d_z, -kappa - kappa / tau * d_tau
        reach = min(_reach(s, d_s), _reach(z, d_z), _reach_one(tau, d_tau), _reach_one(kappa, d_kappa), 1.0)
        # corrector: towards the middle, the more the shorter the predictor was
        middle = min(max((1.0 - reach) ** 3, 1e-4), 1.0)
        turn = s + d_s * d_z / z - middle * mu / z
        x2, z2 = solve((1 - middle) * of_dual, turn - (1 - middle) * of_primal)
        push = kappa * tau + d_kappa * d_tau - middle * mu
        d_tau = ((1 - middle) * of_gap - push / tau + float(c @ x2 + h @ z2)) / weight
        d_x, d_z = x2 + d_tau * x1, z2 + d_tau * z1
        d_s, d_kappa = -turn - ratio * d_z, -(push + kappa * d_tau) / tau
        reach = min(_reach(s, d_s), _reach(z, d_z), _reach_one(tau, d_tau), _reach_one(kappa, d_kappa))
        step = min(_STEP * reach, 0.999)
        x, z, s = x + step * d_x, z + step * d_z, s + step * d_s
        tau, kappa = tau + step * d_tau, kappa + step * d_kappa
        if not (np.isfinite(x).all() and tau > 0):
            return None
    return None


def _equilibrated(
    g: FloatArray, h: FloatArray, c: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Scales rows and columns to one size, three times by roots; returns g, h, c and the scale of the variables."""
    columns, rows = np.ones(g.shape[1]), np.ones(g.shape[0])
    for _ in range(3):
        sizes = np.abs(g)
        by_row, by_column = np.sqrt(_or_one(sizes.max(axis=1))), np.sqrt(_or_one(sizes.max(axis=0)))
        g = g / by_row[:, None] / by_column[None, :]
        rows, columns = rows * by_row, columns * by_column
    return g, h / rows, c / columns, columns


def _or_one(values: FloatArray) -> FloatArray:
    return np.where(values < 1e-6, 1.0, values)


def _normal_equations(g: FloatArray, ratio: FloatArray) -> _Solve | None:
    """Solver of G'z = a, G x - ratio z = b for x and z; None if the system is singular."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    normal = g.T @ (g / ratio[:, None])
    normal[np.diag_indices(len(normal))] += 1e-13 * float(normal.trace()) / len(normal)
    if not np.isfinite(normal).all():
        return None
    try:
        factor = cho_factor(normal, check_finite=False)
    except LinAlgError:
        return None

    def solve(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        x = cho_solve(factor, a + g.T @ (b / ratio), check_finite=False)
        return x, (g @ x - b) / ratio

    return solve


def _inside(values: FloatArray) -> FloatArray:
    """Moves values, all by the same amount, until they are positive."""
    least = float(values.min())
    return values if least > 0 else values + (1.0 - least)


def _norm(values: FloatArray) -> float:
    return float(np.linalg.norm(values))


def _reach(values: FloatArray, change: FloatArray) -> float:
    """The longest step that keeps all values from falling below 0."""
    falling = change < 0
    return float((-values[falling] / change[falling]).min()) if falling.any() else 1e3


def _reach_one(value: float, change: float) -> float:
    return -value / change if change < 0 else 1e3

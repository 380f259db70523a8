"""Gavel's programs: objectives against HiGHS on the plain formulation, and cases solved by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from coadapt.policies.gavel import assignments, programs
from coadapt.policies.gavel.linear_program import central_solution, maximise
from coadapt.policies.gavel.problem import Applicant, Problem, Row

TYPES = ("k80", "p100", "v100")


def a_problem(*jobs: Applicant, capacity: tuple[int, ...] = (1,), pairs: tuple[Row, ...] = ()) -> Problem:
    return Problem(jobs=jobs, types=TYPES[: len(capacity)], capacity=capacity, pairs=pairs)


def an_applicant(
    name: str = "a", *rates: float, gpus: int = 1, left: float = 100.0, **more: object
) -> Applicant:
    return Applicant(id=name, gpus=gpus, rates=rates or (1.0,), steps_left=left, **more)  # type: ignore[arg-type]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    types = draw(st.integers(1, 3))
    rate = st.floats(0.05, 50.0)
    jobs = [
        an_applicant(
            f"j{i}",
            *(draw(rate) for _ in range(types)),
            gpus=draw(st.sampled_from([1, 1, 2, 4])),
            left=draw(st.floats(1.0, 1e5)),
            age_s=draw(st.floats(0.0, 1e4)),
            isolated_s=draw(st.floats(0.0, 1e4)),
            weight=draw(st.sampled_from([1.0, 2.0])),
        )
        for i in range(draw(st.integers(1, 8)))
    ]
    return a_problem(*jobs, capacity=tuple(draw(st.integers(4, 9)) for _ in range(types)))


def feasible(problem: Problem, x: np.ndarray) -> bool:
    flat = x.ravel()
    time, gpus = problem.member @ flat, problem.usage @ flat
    return bool((x >= 0).all() and (time <= 1 + 1e-6).all() and (gpus <= problem.room * (1 + 1e-6)).all())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problems())
def test_max_min_fairness_reaches_the_optimum_of_the_plain_program(problem: Problem) -> None:
    x = programs.max_min_fairness(problem)
    served = (problem.gpus / (problem.weights * problem.proportional))[:, None] * problem.speeds
    count = problem.speeds.shape[1]
    rows = np.vstack(
        [
            np.hstack(
                [
                    np.vstack([problem.member, problem.usage]),
                    np.zeros((len(problem.jobs) + len(problem.types), 1)),
                ]
            ),
            np.hstack([-served, np.ones((len(problem.jobs), 1))]),
        ]
    )
    bound = np.concatenate([np.ones(len(problem.jobs)), problem.room, np.zeros(len(problem.jobs))])
    best = -linprog(np.append(np.zeros(count), -1.0), A_ub=rows, b_ub=bound).fun
    assert feasible(problem, x)
    assert programs.objective(problem, x) == pytest.approx(best, rel=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problems())
def test_finish_time_fairness_cannot_be_improved(problem: Problem) -> None:
    x = programs.finish_time_fairness(problem)
    rho = programs.rho_of(problem, x)
    assert feasible(problem, x)
    # no fractions meet the rates that a rho smaller by 1e-4 asks for
    own = (problem.rates * problem.even()).sum(axis=1)
    alone = np.array([job.isolated_s for job in problem.jobs]) + problem.steps_left / own
    room_s = rho * (1 - 1e-4) * alone - np.array([job.age_s for job in problem.jobs])
    if (room_s <= 0).any():
        return
    rows = np.vstack([problem.member, problem.usage, -problem.speeds])
    bound = np.concatenate([np.ones(len(problem.jobs)), problem.room, -problem.steps_left / room_s])
    assert maximise(np.zeros(rows.shape[1]), rows, bound) is None


@settings(max_examples=25, deadline=None, derandomize=True)
@given(problems())
def test_makespan_is_within_the_tolerance_of_the_least(problem: Problem) -> None:
    x = programs.min_total_duration(problem)
    horizon = float((problem.steps_left / (problem.speeds @ x.ravel())).max())
    exact = programs.min_total_duration(problem, tolerance=1e-4)
    least = float((problem.steps_left / (problem.speeds @ exact.ravel())).max())
    assert feasible(problem, x)
    assert least * (1 - 2e-4) <= horizon <= max(least * 1.0501, 105.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problems())
def test_throughput_and_its_centre_reach_the_optimum(problem: Problem) -> None:
    x = programs.max_sum_throughput(problem)
    rows = np.vstack([problem.member, problem.usage])
    bound = np.concatenate([np.ones(len(problem.jobs)), problem.room])
    gain = problem.speeds.sum(axis=0)
    best = maximise(gain, rows, bound)
    assert best is not None
    assert feasible(problem, x)
    assert float(gain @ x.ravel()) == pytest.approx(best.value, rel=1e-6)


def test_centre_of_equal_jobs_is_the_same_for_all() -> None:
    """Two equal jobs on one GPU: every split is optimal for the sum, the middle is half and half."""
    found = central_solution(np.ones(2), np.array([[1.0, 1.0]]), np.array([1.0]))
    assert found is not None
    assert found == pytest.approx([0.5, 0.5], abs=1e-6)


def test_program_without_a_solution_has_none() -> None:
    assert maximise(np.zeros(1), np.array([[1.0], [-1.0]]), np.array([1.0, -2.0]), central=True) is None


def test_max_min_fairness_by_hand() -> None:
    """One GPU of each type; b gains more by the fast one. Both reach 1.2 of their mean rate.

    a: 1 and 2 steps/s (mean 1.5), b: 1 and 4 (mean 2.5). a all of the slow and u of the fast, b the rest:
    (1 (1 - u) + 2 u) / 1.5 = (1 u + 4 (1 - u)) / 2.5, so u = 0.7 / (1 / 1.5 + 3 / 2.5) ... checked numerically.
    """
    problem = a_problem(an_applicant("a", 1.0, 2.0), an_applicant("b", 1.0, 4.0), capacity=(1, 1))
    x = programs.max_min_fairness(problem)
    shares = problem.speeds @ x.ravel() / problem.proportional
    u = (4 / 2.5 - 1 / 1.5) / (1 / 1.5 + 3 / 2.5)
    assert x == pytest.approx(np.array([[1 - u, u], [u, 1 - u]]), abs=1e-5)
    assert shares[0] == pytest.approx(shares[1], rel=1e-6)


def test_cost_by_hand() -> None:
    """A GPU that is twice as fast at three times the price is not used for steps per money where the slow one has room."""
    problem = a_problem(an_applicant("a", 1.0, 2.0), capacity=(1, 1))
    assert programs.max_sum_throughput(problem) == pytest.approx(np.array([[0.0, 1.0]]), abs=1e-6)
    cheap = programs.max_sum_throughput(problem, prices=(1.0, 3.0))
    assert cheap == pytest.approx(np.array([[1.0, 0.0]]), abs=1e-6)


def test_deadlines_by_hand() -> None:
    """150 steps in 100 s need half of the time on the fast GPU; an impossible deadline is no deadline."""
    late = an_applicant("a", 1.0, 2.0, left=150.0, due_s=100.0)
    x = programs.max_sum_throughput(a_problem(late, capacity=(1, 1)), prices=(1.0, 3.0), deadlines=True)
    assert x == pytest.approx(np.array([[0.5, 0.5]]), abs=1e-6)
    never = an_applicant("a", 1.0, 2.0, left=150.0, due_s=10.0)
    x = programs.max_sum_throughput(a_problem(never, capacity=(1, 1)), prices=(1.0, 3.0), deadlines=True)
    assert x == pytest.approx(np.array([[1.0, 0.0]]), abs=1e-6)


def test_water_filling_by_hand() -> None:
    """Two GPUs: a can only use the slow type; b and c divide the fast one, and one of them may have more of nothing."""
    jobs = (an_applicant("a", 1.0, 0.0), an_applicant("b", 0.0, 1.0), an_applicant("c", 0.0, 1.0))
    x = programs.water_filling(a_problem(*jobs, capacity=(1, 1)))
    assert x == pytest.approx(np.array([[1.0, 0.0], [0.0, 0.5], [0.0, 0.5]]), abs=1e-4)


def test_hierarchical_by_hand() -> None:
    """One GPU, two users: the user with one job gets as much as the one with three."""
    jobs = [
        an_applicant(name, entity=user) for name, user in (("a", "u"), ("b", "v"), ("c", "v"), ("d", "v"))
    ]
    x = programs.water_filling(a_problem(*jobs), entities="fairness")
    assert x[:, 0] == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6], abs=1e-4)
    x = programs.water_filling(a_problem(*jobs), entities="fifo")
    assert x[:, 0] == pytest.approx([1 / 2, 1 / 2, 0.0, 0.0], abs=1e-4)


def test_packed_pair_that_gains_is_used() -> None:
    """Two jobs on one GPU: alone each would have half; together each goes at 0.8."""
    pair = Row((0, 1), ((0.8,), (0.8,)))
    problem = a_problem(an_applicant("a"), an_applicant("b"), pairs=(pair,))
    x = programs.max_min_fairness(problem)
    assert programs.objective(problem, x) == pytest.approx(0.8, abs=1e-6)
    assert x[2, 0] == pytest.approx(1.0, abs=1e-5)


def test_fifo_takes_the_fastest_type_and_stops_at_the_first_that_fits_nowhere() -> None:
    jobs = (an_applicant("a", 1.0, 2.0), an_applicant("b", 1.0, 2.0, gpus=2), an_applicant("c", 1.0, 2.0))
    x = assignments.fifo_fastest(a_problem(*jobs, capacity=(1, 1)))
    assert x.tolist() == [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]


def test_fifo_packs_the_head_of_the_queue_where_both_lose_least() -> None:
    jobs = (an_applicant("a"), an_applicant("b"), an_applicant("c"))
    good, bad = Row((0, 2), ((0.9,), (0.9,))), Row((1, 2), ((0.8,), (0.8,)))
    x = assignments.fifo_packed(a_problem(*jobs, capacity=(2,), pairs=(good, bad)))
    assert x[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]
    alone = assignments.fifo_packed(a_problem(*jobs, capacity=(2,), pairs=(Row((0, 2), ((0.7,), (0.7,))),)))
    assert alone[:, 0].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_allox_gives_the_gpu_to_the_shortest_and_keeps_what_runs() -> None:
    jobs = (an_applicant("a", left=100.0), an_applicant("b", left=10.0))
    assert assignments.allox(a_problem(*jobs), {}).tolist() == [[0.0], [1.0]]
    assert assignments.allox(a_problem(*jobs), {"a": 0}).tolist() == [[1.0], [0.0]]

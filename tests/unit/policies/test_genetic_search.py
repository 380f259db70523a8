"""The genetic search: feasible members, the right sort, the optimum where it can be enumerated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coadapt.errors import InvariantError
from coadapt.policies.pollux.genetic_search import (
    ATTEMPTS,
    END,
    PATIENCE,
    Problem,
    Space,
    carry_over,
    crowding_distances,
    rank_fronts,
    search,
    survivors,
    tournament,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def a_goodput(rng: np.random.Generator, nodes: int, replicas: int) -> Floats:
    """(nodes + 1, replicas + 1) goodput of a random job by the formulas of Pollux, best of 20 batch sizes."""
    m0 = 2.0 ** rng.uniform(4, 8)
    phi, overlap = m0 * 10 ** rng.uniform(0, 2), rng.uniform(1, 4)
    fixed_s, each_s = rng.uniform(0.01, 0.1), rng.uniform(0.05, 0.25) / m0
    local_s, more_s = rng.uniform(0.005, 0.1), rng.uniform(0.0005, 0.005)
    n, k = np.arange(nodes + 1)[:, None, None], np.maximum(np.arange(replicas + 1), 1)[None, :, None]
    batch = np.geomspace(m0, 32 * m0, 20)
    t_grad = fixed_s + each_s * batch / k
    t_sync = np.where(n > 1, 2.0, 1.0) * (local_s + more_s * np.maximum(k - 2, 0))
    t = (t_grad**overlap + np.where(k > 1, t_sync, 1e-8) ** overlap) ** (1 / overlap)
    goodput: Floats = (batch / t * (phi + m0) / (phi + batch)).max(axis=2)
    goodput[0], goodput[:, 0] = 0, 0
    return goodput


def a_problem(
    jobs: int = 4,
    nodes: int = 4,
    gpus: int = 4,
    *,
    seed: int = 0,
    current: object = None,
    max_replicas: object = None,
    min_replicas: object = 0,
    gpus_per_replica: object = 1,
    restart_factor: object = 1.0,
    capacity: object = None,
    avoid_interference: bool = True,
    published_repair: bool = True,
    max_nodes_per_job: int = 16,
) -> Problem:
    rng = np.random.default_rng(seed)
    total = nodes * gpus
    tables = [a_goodput(rng, nodes, total) for _ in range(jobs)]
    fair = -(-total // jobs)
    return Problem(
        speedup=np.array([table / table[1, fair] * nodes / total for table in tables]),
        current=np.zeros((jobs, nodes), dtype=np.int64) if current is None else np.array(current),
        restart_factor=np.broadcast_to(np.asarray(restart_factor, dtype=float), (jobs,)),
        max_replicas=np.broadcast_to(np.asarray(total if max_replicas is None else max_replicas), (jobs,)),
        min_replicas=np.broadcast_to(np.asarray(min_replicas), (jobs,)),
        gpus_per_replica=np.broadcast_to(np.asarray(gpus_per_replica), (jobs,)),
        capacity=np.broadcast_to(np.asarray(gpus if capacity is None else capacity), (nodes,)),
        avoid_interference=avoid_interference,
        published_repair=published_repair,
        max_nodes_per_job=max_nodes_per_job,
    )


def repaired(problem: Problem, *members: object, seed: int = 0) -> Ints:
    space = Space(problem)
    x = space.repair(space.members_last(np.array(members)), np.random.default_rng(seed))
    return x.transpose(2, 0, 1).astype(np.int64)


def assert_feasible(problem: Problem, member: Ints) -> None:
    replicas, nodes = member.sum(axis=1), np.count_nonzero(member, axis=1)
    assert (member >= 0).all()
    assert (problem.gpus_per_replica @ member <= problem.capacity).all()
    assert (replicas <= problem.max_replicas).all()
    assert ((replicas == 0) | (replicas >= problem.min_replicas)).all()
    assert (nodes <= problem.max_nodes_per_job).all()
    if problem.avoid_interference:
        assert ((member > 0)[nodes > 1].sum(axis=0) <= 1).all()


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    jobs, nodes = draw(st.integers(1, 6)), draw(st.integers(1, 5))

    def each(low: int, high: int, count: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    return a_problem(
        jobs,
        nodes,
        gpus=4,
        max_replicas=each(0, 4 * nodes, jobs),
        min_replicas=each(0, 3, jobs),
        gpus_per_replica=each(1, 3, jobs),
        capacity=each(0, 4, nodes),
        avoid_interference=draw(st.booleans()),
        published_repair=draw(st.booleans()),
        max_nodes_per_job=draw(st.integers(1, nodes)),
    )


@given(problems(), st.integers(0, 2**32))
def test_repair_makes_any_matrix_feasible(problem: Problem, seed: int) -> None:
    members = np.random.default_rng(seed).integers(0, 6, size=(5, *problem.current.shape))
    for member in repaired(problem, *members):
        assert_feasible(problem, member)


@given(problems(), st.integers(0, 2**32))
def test_repair_leaves_what_is_feasible_alone(problem: Problem, seed: int) -> None:
    members = np.random.default_rng(seed).integers(0, 6, size=(5, *problem.current.shape))
    once = repaired(problem, *members)
    assert (repaired(problem, *once, seed=1) == once).all()


def test_repair_as_published_evicts_every_job_after_the_second_distributed_one() -> None:
    crowded = [[1, 1], [1, 1], [2, 0]]
    published = repaired(a_problem(3, 2), crowded)[0]
    assert published.tolist() == [[1, 1], [0, 0], [0, 0]]
    ours = repaired(a_problem(3, 2, published_repair=False), crowded)[0]
    assert ours.tolist() == [[1, 1], [0, 0], [2, 0]]


def test_repair_allows_distributed_neighbours_where_interference_is_accepted() -> None:
    member = [[1, 1], [1, 1], [2, 0]]
    assert repaired(a_problem(3, 2, avoid_interference=False), member)[0].tolist() == member


def test_repair_gives_a_full_node_to_the_jobs_first_in_order() -> None:
    problem = a_problem(3, 1, gpus_per_replica=[1, 2, 1])
    assert repaired(problem, [[1], [2], [3]])[0].tolist() == [[1], [1], [0]]


def test_repair_takes_excess_replicas_from_random_nodes() -> None:
    problem = a_problem(1, 4, max_replicas=[3])
    members = repaired(problem, *[[[2, 2, 2, 2]]] * 400)
    assert (members.sum(axis=2) == 3).all()
    # One node of four keeps 2 replicas and another 1: each keeps 3/4 of a replica on average.
    assert members.mean(axis=0)[0] == pytest.approx([0.75] * 4, abs=0.2)


def test_mutation_grows_jobs_with_the_published_chances() -> None:
    # Node 0 is full. On node 1, job 0 has a replica: p1 = 1/2, p2 = 1; job 1 has none: p = p1.
    # Pruning happens to 1% of the cells, the draw from [x, 4] keeps x in 1/4 (job 0) and 1/5 (job 1).
    problem = a_problem(2, 2)
    space = Space(problem)
    members = np.array([[[0, 1], [4, 0]]] * 20_000)
    x = space.mutate(space.members_last(members), np.random.default_rng(0))
    grown = (x.transpose(2, 0, 1) > members).mean(axis=0)
    assert grown[:, 1] == pytest.approx([0.75, 0.5 * 0.8], abs=0.015)
    assert grown[0, 0] == pytest.approx(0.01 * 0.5 * 0.8, abs=0.005)  # only where job 1 was pruned
    assert x.max() == 4


def test_crossover_exchanges_the_jobs_before_one_point() -> None:
    problem = a_problem(6, 2, current=np.full((6, 2), 3))
    members = np.stack([np.full((6, 2), 1), np.full((6, 2), 2)]).astype(np.uint8)
    children = Space(problem).cross(members, np.array([0, 1] * 500), np.random.default_rng(0))
    rows = children[:, 0].T  # member x job: 1 or 2 for the parent, 3 where reset to the current row
    assert (children == children[:, :1]).all()
    assert (rows == 3).mean() == pytest.approx(0.1, abs=0.02)
    for row in rows:
        origin = row[row != 3]
        assert np.count_nonzero(np.diff(origin)) <= 1


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40))
def test_rank_fronts_equals_peeling_off_the_undominated(points: list[tuple[int, int]]) -> None:
    objectives = np.array(points, dtype=float)
    expected, left, front = np.full(len(points), -1), set(range(len(points))), 0
    while left:
        beaten = {
            i
            for i, j in itertools.product(left, left)
            if (objectives[j] <= objectives[i]).all() and (objectives[j] < objectives[i]).any()
        }
        expected[list(left - beaten)] = front
        left, front = beaten, front + 1
    assert rank_fronts(objectives).tolist() == expected.tolist()


def test_crowding_measures_the_gap_between_neighbours() -> None:
    objectives = np.array([[0, 4], [1, 3], [1, 3], [4, 0], [5, 5], [6, 6]], dtype=float)
    crowding = crowding_distances(objectives, rank_fronts(objectives))
    # The first of the equal points spans the whole front, the second counts as crowded out.
    assert crowding.tolist() == [END, 1.0, 0.0, END, np.inf, np.inf]


def test_survivors_are_whole_fronts_then_the_least_crowded() -> None:
    ranks, crowding = np.array([1, 0, 1, 0, 1]), np.array([0.2, END, 0.9, END, 0.5])
    kept = survivors(ranks, crowding, 4, np.random.default_rng(0))
    assert sorted(kept.tolist()) == [1, 2, 3, 4]


def test_tournament_prefers_the_dominating_then_the_less_crowded() -> None:
    objectives = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    wins = tournament(objectives, np.array([0.1, 0.9, np.inf]), 3000, np.random.default_rng(0))
    share = np.bincount(wins, minlength=3) / 3000
    assert share == pytest.approx([1 / 3, 2 / 3, 0.0], abs=0.05)


def brute_force(problem: Problem) -> float:
    """The best fitness of all feasible matrices."""
    jobs, nodes = problem.current.shape
    cells = itertools.product(range(int(problem.capacity.max()) + 1), repeat=jobs * nodes)
    members = np.array(list(cells)).reshape(-1, jobs, nodes)
    members = members[(members.sum(axis=1) <= problem.capacity).all(axis=1)]
    spread = np.count_nonzero(members, axis=2) > 1
    members = members[(((members > 0) & spread[:, :, None]).sum(axis=1) <= 1).all(axis=1)]
    members = members[(members.sum(axis=2) <= problem.max_replicas).all(axis=1)]
    space = Space(problem)
    return float(-space.evaluate(space.members_last(members), -1.0)[:, 0].min())


@pytest.mark.parametrize("seed", range(3))
def test_search_finds_the_optimum_of_a_tiny_problem(seed: int) -> None:
    problem = a_problem(
        3, 3, 2, seed=seed, current=[[2, 0, 0], [0, 1, 0], [0, 0, 0]], restart_factor=[0.5, 0.9, 0.7]
    )
    result = search(problem, None, np.random.default_rng(seed))
    assert result.fitness == pytest.approx(brute_force(problem), rel=1e-12)
    assert_feasible(problem, result.best)


def test_evaluate_agrees_with_the_formulas_by_hand() -> None:
    problem = a_problem(2, 2, current=[[2, 0], [0, 0]], restart_factor=[0.5, 0.25], gpus_per_replica=[1, 2])
    space = Space(problem)
    member = np.array([[[2, 0], [0, 1]], [[2, 0], [0, 0]]])
    stays, starts = problem.speedup[0, 1, 2], problem.speedup[1, 1, 1]
    values = -space.evaluate(space.members_last(member), -1.0)
    harmonic = 2 / (1 / (stays + 1e-3) + 1 / (0.25 * starts + 1e-3))
    assert values[0, 0] == pytest.approx(harmonic)
    # scale = GPUs per replica * 2 nodes / 8 GPUs; both nodes, then one node in use
    relative = np.array([stays / 0.25, starts / 0.5])
    assert values[0, 1] == pytest.approx(relative[0] / 2 * 2 / 8 + relative[1] * 2 / 8)
    assert values[1, 1] == pytest.approx(relative[0] / 2 * 2 / 4)
    geometric = -space.evaluate(space.members_last(member), 0.0)[:, 0]
    assert geometric == pytest.approx([np.sqrt(stays * 0.25 * starts), np.sqrt(stays * 1e-3)])


def test_search_repeats_itself_from_the_same_seed() -> None:
    problem = a_problem(6, 4)
    first, second, other = (
        search(problem, None, np.random.default_rng(seed), generations=20) for seed in (3, 3, 4)
    )
    assert (first.front.tobytes(), first.fitness) == (second.front.tobytes(), second.fitness)
    assert first.front.tobytes() != other.front.tobytes()


def test_search_never_falls_below_its_first_population() -> None:
    problem = a_problem(6, 4)
    start = search(problem, None, np.random.default_rng(0), generations=30)
    again = search(problem, start.front, np.random.default_rng(1), generations=2)
    assert again.fitness >= start.fitness
    alone = search(problem, start.front, np.random.default_rng(1), generations=1)
    assert (alone.generations_run, alone.evaluations) == (1, len(start.front))
    assert (alone.fitness, alone.best.tolist()) == (start.fitness, start.best.tolist())


def test_search_front_holds_only_feasible_and_different_members() -> None:
    problem = a_problem(5, 4, gpus_per_replica=[1, 2, 1, 1, 2], max_replicas=[1, 8, 4, 2, 8])
    result = search(problem, None, np.random.default_rng(0), generations=30)
    for member in result.front:
        assert_feasible(problem, member)
    assert len({member.tobytes() for member in result.front}) == len(result.front)


@pytest.mark.parametrize(("jobs", "nodes"), [(3, 2), (1, 2), (1, 1)])
def test_search_of_a_small_problem_is_bounded(jobs: int, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matings = 0
    repair = Space.repair

    def counted(self: Space, x: Ints, rng: np.random.Generator) -> object:
        nonlocal matings
        matings += 1
        return repair(self, x, rng)

    monkeypatch.setattr(Space, "repair", counted)
    result = search(a_problem(jobs, nodes, max_replicas=2), None, np.random.default_rng(0))
    assert matings <= 1 + ATTEMPTS * (result.generations_run + 1)
    assert result.evaluations <= 100 * result.generations_run
    if jobs == 1:
        assert result.generations_run < 20  # every allocation has been seen
        assert result.best.sum() == 2


def test_search_of_no_jobs_or_no_nodes_is_empty() -> None:
    for shape in ((0, 4), (4, 0)):
        jobs, nodes = shape
        nothing = Problem(
            speedup=np.zeros((jobs, nodes + 1, 1)),
            current=np.zeros(shape, dtype=np.int64),
            restart_factor=np.ones(jobs),
            max_replicas=np.zeros(jobs, dtype=np.int64),
            min_replicas=np.zeros(jobs, dtype=np.int64),
            gpus_per_replica=np.ones(jobs, dtype=np.int64),
            capacity=np.full(nodes, 4),
        )
        assert search(nothing, None, np.random.default_rng(0)).best.shape == shape


def test_patience_saves_generations_and_keeps_the_fitness() -> None:
    ratios, generations = [], []
    for seed in range(3):
        problem = a_problem(
            6, 4, seed=seed, max_replicas=2 ** np.random.default_rng(seed).integers(0, 5, size=6)
        )
        full = search(problem, None, np.random.default_rng(1))
        early = search(problem, None, np.random.default_rng(1), patience=PATIENCE)
        ratios.append(early.fitness / full.fitness)
        generations.append(early.generations_run)
    assert np.mean(ratios) >= 0.995
    assert np.mean(generations) < 50


def test_patience_waits_until_every_job_has_a_replica() -> None:
    problem = a_problem(9, 4, max_replicas=4)
    impatient = [search(problem, None, np.random.default_rng(seed), patience=1) for seed in range(3)]
    assert all((result.best.sum(axis=1) > 0).all() for result in impatient)
    assert max(result.generations_run for result in impatient) < 100


def test_carry_over_drops_what_left_and_adds_empty_rows() -> None:
    front = np.arange(1, 7).reshape(1, 2, 3)
    moved = carry_over(front, ["a", "b"], ["new", "b"], ["x", "y", "z"], ["z", "w", "x"])
    assert moved.tolist() == [[[0, 0, 0], [6, 0, 4]]]


def test_problem_refuses_a_table_smaller_than_its_limits() -> None:
    with pytest.raises(InvariantError, match="speedup has shape"):
        a_problem(2, 2, max_replicas=100)

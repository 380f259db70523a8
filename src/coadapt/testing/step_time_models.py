"""Conformance suite of step-time models: subclass it, implement ``make``, run pytest."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from coadapt.model import Configuration, Measurement
from coadapt.prediction.step_time._base import FittedStepTime, StepTimeModel
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable, observe

#: nodes, replicas, examples per GPU: what the made-up job was measured in.
MEASURED = ((1, 1, 16), (1, 1, 32), (1, 1, 64), (1, 2, 32), (1, 4, 32), (2, 8, 32), (3, 12, 32), (4, 16, 32))


def true_times(nodes: int, replicas: int, atomic: int) -> tuple[float, float]:
    """A made-up job: seconds of a step, and of the synchronisation in it."""
    sync_s = 0.0 if replicas == 1 else 0.02 + 0.002 * replicas if nodes == 1 else 0.08 + 0.004 * replicas
    return 0.03 + 0.004 * atomic + sync_s, sync_s


def a_table(places: Iterable[tuple[int, int, int]] = MEASURED, *, slower: float = 1.0) -> StepTimeTable:
    """Measurements of the made-up job, all times ``slower`` times as long."""
    table = EMPTY_TABLE
    for nodes, replicas, atomic in places:
        step_s, sync_s = true_times(nodes, replicas, atomic)
        config = Configuration(nodes=nodes, replicas=replicas, atomic_batch=atomic)
        table = observe(table, Measurement(config=config, step_s=slower * step_s, sync_s=slower * sync_s))
    return table


class StepTimeModelConformance:
    """Subclass and implement ``make``."""

    #: Largest relative error at places that were measured without noise.
    tolerance = 0.15

    def make(self) -> StepTimeModel:
        """A new model, which has fitted nothing yet."""
        raise NotImplementedError

    def fitted(self) -> FittedStepTime:
        """The made-up job, fitted."""
        found = self.make().fit(a_table())
        assert found is not None
        return found

    def test_nothing_measured_is_nothing_known_or_the_prior(self) -> None:
        model, prior = self.make(), self.fitted()
        assert model.fit(EMPTY_TABLE) is None
        assert model.fit(a_table(), gpu_type="another") is None
        assert model.fit(EMPTY_TABLE, prior) is prior
        assert model.fit_many([EMPTY_TABLE, EMPTY_TABLE], [None, prior]) == [None, prior]

    def test_one_measurement_suffices_for_positive_times(self) -> None:
        found = self.make().fit(a_table(MEASURED[1:2]))
        assert found is not None
        times = found.step_time([1, 1, 2, 4], [1, 4, 8, 32], 32)
        assert times.shape == (4,)
        assert np.all(np.isfinite(times))
        assert np.all(times > 0)

    def test_measured_places_are_near_what_was_measured(self) -> None:
        found = self.fitted()
        for nodes, replicas, atomic in MEASURED:
            truth = true_times(nodes, replicas, atomic)[0]
            assert abs(float(found.step_time(nodes, replicas, atomic)) / truth - 1) < self.tolerance

    def test_accumulation_adds_passes_and_throughput_is_examples_over_time(self) -> None:
        found = self.fitted()
        one, three = (float(found.step_time(2, 8, 32, extra)) for extra in (0, 2))
        pass_s = float(found.grad_time(2, 8, 32))
        assert 0 < pass_s <= one * (1 + 1e-9)
        assert math.isclose(three, one + 2 * pass_s, rel_tol=1e-6)
        assert math.isclose(float(found.throughput(2, 8, 32, 2)), 8 * 32 * 3 / three, rel_tol=1e-9)

    def test_questions_broadcast(self) -> None:
        found = self.fitted()
        grid = found.step_time(np.array([1, 2])[:, None], np.array([2, 4, 8]), 32)
        assert grid.shape == (2, 3)
        alone = [[float(found.step_time(n, k, 32)) for k in (2, 4, 8)] for n in (1, 2)]
        np.testing.assert_allclose(grid, alone, rtol=1e-6)

    def test_many_together_are_each_alone_to_the_last_bit(self) -> None:
        tables = [a_table(MEASURED[: 1 + 2 * i], slower=1.0 + i) for i in range(4)]
        together = self.make().fit_many(tables)
        assert together == [self.make().fit(a_table(MEASURED[: 1 + 2 * i], slower=1.0 + i)) for i in range(4)]

    def test_a_fit_is_made_once(self) -> None:
        model = self.make()
        first = model.fit(a_table())
        assert model.fits == 1
        assert model.fit(a_table()) == first
        model.fit_many([a_table(), a_table()])
        assert model.fits == 1

    def test_a_fit_is_a_key(self) -> None:
        found = self.fitted()
        assert found == self.fitted()
        assert hash(found) == hash(self.fitted())

    def test_prediction_holds_its_own_value_and_the_time_that_it_is_of(self) -> None:
        found = self.fitted()
        for nodes, replicas, atomic in (*MEASURED, (8, 32, 16)):
            estimate = found.predict(Configuration(nodes=nodes, replicas=replicas, atomic_batch=atomic))
            assert 0 < estimate.low <= estimate.value <= estimate.upper < math.inf
            assert math.isclose(estimate.value, float(found.step_time(nodes, replicas, atomic)), rel_tol=1e-6)

    def test_projection_divides_all_times_and_widens(self) -> None:
        found, at = self.fitted(), Configuration(nodes=1, replicas=4, atomic_batch=32)
        faster = found.projected(2.0, 0.4)
        places = (np.array([1, 1, 2]), np.array([1, 4, 8]), np.array([16, 32, 64]))
        np.testing.assert_allclose(2 * faster.step_time(*places), found.step_time(*places), rtol=1e-6)
        before, after = found.predict(at), faster.predict(at)
        assert after.upper / after.low > before.upper / before.low

    def test_node_counts_of_one_index_take_the_same_time(self) -> None:
        found, nodes = self.fitted(), np.arange(1, 40)
        counts = found.node_counts()[found.distinct_nodes(nodes) - 1]
        np.testing.assert_array_equal(found.step_time(nodes, 64, 32), found.step_time(counts, 64, 32))
        assert found.distinct_nodes(0) == 0

    def test_jobs_asked_together_answer_as_alone(self) -> None:
        found = self.fitted()
        if found.batch_group() is None:
            return
        nodes, replicas, sizes = np.array([1, 2]), np.array([4, 8]), np.array([[16, 16], [32, 32]])
        atomic = np.stack([sizes.astype(np.float32)] * 2)
        terms = np.stack([found.batch_terms(sizes)] * 2)
        grad, step = found.times_many([found, found], atomic, terms, nodes, replicas)
        np.testing.assert_allclose(step[0], found.step_time(nodes, replicas, sizes), rtol=1e-3)
        np.testing.assert_allclose(grad[0], found.grad_time(nodes, replicas, sizes), rtol=1e-3)
        np.testing.assert_array_equal(step[0], step[1])

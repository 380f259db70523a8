from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest
from benchmarks.prediction_samples import epoch_rows, epoch_split, metric_rows, metric_split

from coadapt.errors import InputError
from coadapt.prediction.samples import isotonic, selection
from coadapt.prediction.samples.conformal import folds_of, spread_factor, spread_factors
from coadapt.prediction.samples.epoch_time import EpochQuery
from coadapt.prediction.samples.final_metric import MetricQuery
from coadapt.prediction.samples.isotonic import EPOCH_SHAPES, fit_rows, values_at
from coadapt.prediction.samples.sample_table import EpochSample, MetricSample, epoch_table, metric_table
from coadapt.prediction.samples.selection import Chosen, EpochChoice, MetricChoice, choose
from tests.data import data_dir
from tests.unit.prediction.test_epoch_time import GRID, a_table
from tests.unit.prediction.test_final_metric import a_table as a_metric_table


def constant(value: float) -> selection.Method:
    return lambda rows, x: np.full(len(x), value)


def test_weighted_isotonic_by_hand():
    # constant batch says nothing, so that all weight is on workers
    x = np.array([[8, k] for k in (1, 2, 3, 4)], dtype=float)
    fitted = fit_rows(x, np.array([8.0, 6.0, 3.0, 5.0]), EPOCH_SHAPES)
    assert fitted.weights == (0.0, 1.0)
    np.testing.assert_allclose(values_at(fitted, np.array([[8, 1], [8, 2], [99, 2.5]])), [8, 6, 5])


def test_choice_names_the_method_with_the_least_error_and_lists_all():
    rows = np.array([[1, 1.0], [2, 2.0], [3, 3.0]])
    folds = folds_of(rows[:, 0])
    chosen = choose({"far": constant(9.0), "near": constant(2.0)}, rows, folds)
    assert chosen == Chosen(name="near", error=2 / 6, errors=(("near", 2 / 6), ("far", 21 / 6)))


def test_choice_without_anything_to_hold_out_is_the_default():
    rows = np.array([[1, 1.0]])
    assert choose({"ours": constant(9.0), "theirs": constant(1.0)}, rows, []) == Chosen(name="ours")


def test_tie_goes_to_the_default():
    rows = np.array([[1, 1.0], [2, 2.0]])
    methods = {"zeta": constant(1.0), "alpha": constant(1.0)}
    assert choose(methods, rows, folds_of(rows[:, 0])).name == "zeta"


def test_folds_hold_out_whole_groups_once():
    groups = np.repeat([5, 7, 9, 11], 3)
    folds = folds_of(groups, 3)
    assert len(folds) == 3
    np.testing.assert_array_equal(np.sum(folds, axis=0), 1)
    assert all(len(set(groups[held]) & set(groups[~held])) == 0 for held in folds)
    assert folds_of(np.ones(4)) == []


def test_spread_factor_is_the_conformal_rank():
    assert spread_factor(np.arange(1.0, 10.0)) == 8.0  # 8th of 9
    assert spread_factor(np.array([0.1, 0.1])) > 3  # too few for a rank: Student's
    assert spread_factor(np.array([50.0, 0.1])) == 50.0


def test_spread_factors_follow_the_errors_that_are_near():
    near, far = np.linspace(1.0, 2.0, 40), np.linspace(0.1, 0.2, 60)
    errors, places = np.concatenate([near, far]), np.concatenate([np.zeros(40), np.full(60, 10.0)])
    here, between, there = spread_factors(errors, places, np.array([0.0, 5.0, 10.0]), reach=0.7)
    assert here == pytest.approx(spread_factor(near), abs=0.05)
    assert there == pytest.approx(spread_factor(far), abs=0.01)
    # nothing is near enough to have a rank: what all of them say
    assert between == spread_factor(errors)


def test_spread_factors_of_one_place_are_that_of_all():
    errors = np.arange(1.0, 10.0)
    assert spread_factors(errors, np.zeros(9), np.zeros(1), reach=0.7)[0] == spread_factor(errors)
    assert (
        spread_factors(np.zeros(0), np.zeros(0), np.zeros(2), reach=0.7).tolist()
        == [spread_factor(np.zeros(0))] * 2
    )


def test_one_bad_error_near_widens_what_lies_around_it():
    errors, places = np.array([9.0, *np.full(30, 0.5)]), np.array([0.0, *np.full(30, 4.0)])
    assert spread_factors(errors, places, np.array([0.0, 4.0]), reach=0.7).tolist() == [9.0, 0.5]


def test_product_of_batch_and_workers_is_given_to_the_node_aware_form():
    choice = selection.fit_epoch(a_table(GRID))
    assert choice is not None
    assert choice.chosen.name == selection.NODE_AWARE
    assert [name for name, _ in choice.chosen.errors] == [selection.NODE_AWARE, selection.PUBLISHED]
    assert choice.chosen.error == choice.chosen.errors[0][1] < 0.05 < choice.chosen.errors[1][1]
    assert msgspec.json.decode(msgspec.json.encode(choice), type=EpochChoice) == choice


def test_steps_in_one_parameter_are_given_to_the_published_method():
    # one batch size, and times that no sum of computing and communicating has
    samples = [
        EpochSample(batch=64, workers=k, nodes=1, epoch_s=(1000.0 if k < 21 else 10.0) + 0.01 * k)
        for k in range(1, 41)
    ]
    choice = selection.fit_epoch(epoch_table(samples, gpus_per_node=64))
    assert choice is not None
    assert choice.chosen.name == selection.PUBLISHED
    found = selection.predict_epoch(choice, EpochQuery(batch=64, workers=5))
    assert found.low <= 1000 <= found.upper
    far = selection.predict_epoch(choice, EpochQuery(batch=64, workers=400))
    near = selection.predict_epoch(choice, EpochQuery(batch=64, workers=40))
    assert far.upper - far.low > near.upper - near.low
    assert msgspec.json.decode(msgspec.json.encode(choice), type=EpochChoice) == choice
    with pytest.raises(InputError, match="batch is 0"):
        selection.predict_epoch(choice, EpochQuery(batch=0, workers=1))


def test_metric_choice_holds_out_batch_sizes_and_answers():
    choice = selection.fit_metric(a_metric_table(noise=0.01))
    assert choice is not None
    assert {name for name, _ in choice.chosen.errors} == {selection.PER_BATCH, selection.PUBLISHED}
    assert choice.chosen.name == selection.PER_BATCH
    found = selection.predict_metric(choice, MetricQuery(batch=100, epochs=10))
    assert found.low <= found.value <= found.upper
    assert msgspec.json.decode(msgspec.json.encode(choice), type=MetricChoice) == choice


def test_metric_by_the_published_method_checks_and_answers():
    rows = np.array([(b, e, 0.5 + e / 100) for b in (8, 16, 32) for e in (1, 2, 3)])
    params = isotonic.fit_held_out(
        rows[:, :2], rows[:, 2], isotonic.metric_shapes(True), folds_of(rows[:, 0])
    )
    choice = MetricChoice(chosen=Chosen(name=selection.PUBLISHED), params=params)
    found = selection.predict_metric(choice, MetricQuery(batch=16, epochs=2))
    assert found.value == pytest.approx(0.52, abs=0.01)
    with pytest.raises(InputError, match="epochs is nan"):
        selection.predict_metric(choice, MetricQuery(batch=16, epochs=math.nan))


def test_single_samples_are_answered_by_the_default_without_an_error():
    epoch = selection.fit_epoch(epoch_table([EpochSample(batch=8, workers=1, epoch_s=5.0)], gpus_per_node=4))
    metric = selection.fit_metric(
        metric_table([MetricSample(batch=8, epochs=1, metric=0.5)], higher_is_better=True)
    )
    assert epoch is not None
    assert epoch.chosen == Chosen(name=selection.NODE_AWARE)
    assert metric is not None
    assert metric.chosen == Chosen(name=selection.PER_BATCH)


def test_empty_tables_answer_with_the_prior():
    assert selection.fit_epoch(epoch_table([], gpus_per_node=4)) is None
    assert selection.fit_metric(metric_table([], higher_is_better=True)) is None


@pytest.mark.data
@pytest.mark.skipif(data_dir() is None, reason="no measurements in ../shared/data or $COADAPT_DATA")
def test_measured_epoch_times_and_metrics_are_predicted_better_than_published():
    task = cast(Path, data_dir()) / "pollux" / "bert"
    rows = epoch_rows(task)
    order = np.random.default_rng(0).permutation(len(rows))
    epoch = epoch_split(rows[order[:63]], rows[order[63:]])
    assert epoch["ours"].mre < 6 < 15 < epoch["published"].mre
    assert epoch["chosen"] == epoch["ours"]
    metrics = metric_rows(task)
    left_out = metrics[:, 0] == 48
    metric = metric_split(metrics[~left_out], metrics[left_out], higher_is_better=True)
    assert metric["ours"].mre < 0.6

"""Every registered batch rule and learning-rate rule, by the published suites."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.plugins import BATCH_RULES, RATE_RULES, Family
from coadapt.torch.batches import BatchRule, Chosen, Situation
from coadapt.torch.rates import Progress, RateRule
from coadapt.torch.rule_conformance import BatchRuleConformance, RateRuleConformance


def suite(family: Family, name: str, base: type) -> type:
    def make(self: object) -> object:
        return family.make(name)

    return type(f"Test_{name}".replace("-", "_"), (base,), {"make": make})


for _name in BATCH_RULES:
    globals()[f"Test_batch_{_name}".replace("-", "_")] = suite(BATCH_RULES, _name, BatchRuleConformance)
for _name in RATE_RULES:
    globals()[f"Test_rate_{_name}".replace("-", "_")] = suite(RATE_RULES, _name, RateRuleConformance)


def test_suites_find_fault_with_wrong_rules() -> None:
    class Huge(BatchRuleConformance):
        def make(self) -> BatchRule:
            class Rule:
                def choose(self, now: Situation) -> Chosen:
                    return Chosen(10**9, 1, why="more is better")

            return Rule()

    class Wild(RateRuleConformance):
        def make(self) -> RateRule:
            class Rule:
                steady = True

                def factor(self, progress: Progress) -> float:
                    return math.exp(progress.epoch)

            return Rule()

    with pytest.raises(AssertionError):
        Huge().test_choices_keep_the_limits()
    with pytest.raises((AssertionError, OverflowError)):
        Wild().test_factor_is_one_at_the_first_batch_size_after_any_warm_up()
    with pytest.raises((AssertionError, OverflowError)):
        Wild().test_steady_rules_look_at_no_epoch()

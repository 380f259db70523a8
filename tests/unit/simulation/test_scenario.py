from __future__ import annotations

from typing import Any

import pytest

from coadapt.errors import InputError
from coadapt.simulation.engine.interference import FlatInterference, LinkSharing
from coadapt.simulation.scenario import Scenario


@pytest.mark.parametrize(
    "options",
    [
        {"interval_s": 0.0},
        {"interval_s": float("nan")},
        {"restart_s": -1.0},
        {"interference": 1.0},
        {"noise": -0.1},
        {"noise": 2.5},
        {"noise": float("nan")},
        {"restart_s": 31 * 86400.0},
        {"interval_s": 366 * 86400.0},
        {"interval_s": "1h"},
        {"skip_bad": "false"},
        {"profiles": 5},
        {"pool": 5},
        {"map_profiles": "no"},
        {"stragglers": 1.5},
        {"links": True, "interference": 0.5},
        {"no_such": 1},
    ],
)
def test_impossible_worlds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Scenario.of(options)


def test_reports_are_due_at_rounds() -> None:
    assert Scenario(interval_s=120.0).setting(0).training.report_s == 120.0
    assert Scenario().setting(0).training.report_s == 30.0


def test_published_setting_is_whole_seconds_and_rounds_of_a_minute() -> None:
    setting = Scenario(published=True).setting(3)
    assert (setting.interval_s, setting.training.resolution_s, setting.training.report_s, setting.seed) == (
        60,
        1,
        60,
        3,
    )
    assert Scenario(published=True, interval_s=30.0).setting(0).interval_s == 30.0


def test_interference_models() -> None:
    assert Scenario(interference=0.25).setting(0).interference == FlatInterference(0.25)
    assert isinstance(Scenario(links=True).setting(0).interference, LinkSharing)

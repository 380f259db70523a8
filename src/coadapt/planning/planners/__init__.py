"""Planners: one file each, all behind ``planning.problem.Planner`` and found by name (``plugins.PLANNERS``).

The default is ``exact``, ours; the others as published. Each is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coadapt.plugins import PLANNERS

if TYPE_CHECKING:
    # for type checkers, which do not see ``__getattr__``; a new planner need not be here
    from coadapt.planning.planners.exact import ExactPlanner as ExactPlanner
    from coadapt.planning.planners.published.bayesian import BayesianPlanner as BayesianPlanner
    from coadapt.planning.planners.published.cherrypick import CherryPickPlanner as CherryPickPlanner
    from coadapt.planning.planners.published.co_configuration import (
        CoConfigurationPlanner as CoConfigurationPlanner,
    )
    from coadapt.planning.planners.published.cynthia import CynthiaPlanner as CynthiaPlanner
    from coadapt.planning.planners.published.grid_random_search import GridPlanner as GridPlanner
    from coadapt.planning.planners.published.grid_random_search import RandomPlanner as RandomPlanner
    from coadapt.planning.planners.published.lb_bsp import LbBspPlanner as LbBspPlanner
    from coadapt.planning.planners.published.linear_scaling import (
        LinearScalingPlanner as LinearScalingPlanner,
    )


def __getattr__(name: str) -> Any:
    return PLANNERS.exported(name, __name__)

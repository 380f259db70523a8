"""Planners: one file each, all behind ``configure.problem.Planner``. The default is ``exact``, ours; the others as published."""

from __future__ import annotations

from coadapt.configure.planners.bayesian import BayesianPlanner
from coadapt.configure.planners.cherrypick import CherryPickPlanner
from coadapt.configure.planners.co_configuration import CoConfigurationPlanner
from coadapt.configure.planners.cynthia import CynthiaPlanner
from coadapt.configure.planners.exact import ExactPlanner
from coadapt.configure.planners.grid_search import GridPlanner
from coadapt.configure.planners.lb_bsp import LbBspPlanner
from coadapt.configure.planners.linear_scaling import LinearScalingPlanner
from coadapt.configure.planners.random_search import RandomPlanner
from coadapt.configure.problem import Planner

PLANNERS: dict[str, type[Planner]] = {
    planner.name: planner
    for planner in (
        ExactPlanner,
        CoConfigurationPlanner,
        CynthiaPlanner,
        LbBspPlanner,
        BayesianPlanner,
        CherryPickPlanner,
        GridPlanner,
        RandomPlanner,
        LinearScalingPlanner,
    )
}

__all__ = ["PLANNERS", *sorted(planner.__name__ for planner in PLANNERS.values())]

"""The cheapest configuration for a deadline and a metric, and how long a model will train before it has run.

- ``plan`` and ``predict``, which are ``coadapt.plan`` and ``coadapt.predict``; their answers ``Planned`` and
  ``ModelPrediction``;
- a plan step by step: ``Request``, ``plan_for``, ``measure_and_plan`` (by short runs, within ``Caps``), ``Evidence``,
  ``Question``, ``Option``, ``Plan``, ``Row``;
- output of a plan: ``plan_text``, ``no_answer``, ``dot_chart``, ``plan_page`` (HTML);
- tools in the interpreter of the training code: ``measure_layers``, ``read_measured``, ``profile_script``,
  ``profile_network``, ``rehearse``.

Names are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.planning.answer import Planned
    from coadapt.planning.html_page import dot_chart, plan_page
    from coadapt.planning.measuring_session import Caps, measure_and_plan
    from coadapt.planning.model_prediction import (
        MeasuredFile,
        ModelPrediction,
        measure_layers,
        predict,
        read_measured,
    )
    from coadapt.planning.plan_api import plan, plan_for
    from coadapt.planning.problem import Evidence, Option, Plan, Planner, Question, Row
    from coadapt.planning.request import Request
    from coadapt.planning.text_output import PlanText, no_answer, plan_text
    from coadapt.planning.torch_tools import (
        ToolError,
        check_script,
        profile_network,
        profile_script,
        rehearse,
    )
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "answer": ("Planned",),
            "html_page": ("dot_chart", "plan_page"),
            "measuring_session": ("Caps", "measure_and_plan"),
            "model_prediction": (
                "MeasuredFile",
                "measure_layers",
                "read_measured",
                "ModelPrediction",
                "predict",
            ),
            "plan_api": ("plan", "plan_for"),
            "problem": ("Evidence", "Option", "Plan", "Planner", "Question", "Row"),
            "request": ("Request",),
            "text_output": ("PlanText", "no_answer", "plan_text"),
            "torch_tools": ("ToolError", "check_script", "profile_network", "profile_script", "rehearse"),
        },
    )

__all__ = [
    "Caps",
    "Evidence",
    "MeasuredFile",
    "ModelPrediction",
    "Option",
    "Plan",
    "PlanText",
    "Planned",
    "Planner",
    "Question",
    "Request",
    "Row",
    "ToolError",
    "check_script",
    "dot_chart",
    "measure_and_plan",
    "measure_layers",
    "no_answer",
    "plan",
    "plan_for",
    "plan_page",
    "plan_text",
    "predict",
    "profile_network",
    "profile_script",
    "read_measured",
    "rehearse",
]

"""Pure reductions of an event log: job completion times, utilisation, fairness, charts, a report.

    history = History()                      # Loop(on_record=history.add), or History.of(log)
    rho = finish_time_fairness(history)      # jobs with a model need the simulator's ``alone_s``
    summary = summarise(history, rho=rho)
    page = render([Run("pollux", history, summary, rho)], title="A week of ours")

- a run by its log: ``History``, ``JobHistory`` with ``Stay`` and ``Progress``, ``Summary``, ``completion_times``, series over time;
- fairness: ``finish_time_fairness``, ``fair_shares``; what no policy can be better than: ``LowerBound`` (module ``lower_bound``);
- several runs: ``compare``, with ``Ratio`` and ``Column``;
- forecasts against what happened: ``forecasts``, ``calibrate``, ``Calibration``;
- where a training script's time went: ``operation_bars``, ``operation_page``;
- files: ``render`` (HTML), module ``chrome_trace``, and ``fresh_file`` and ``fresh_directory``, which are written whole or not at all.

Names are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.report.cluster_history import History
    from coadapt.report.fairness import (
        AloneTime,
        fair_shares,
        finish_time_fairness,
        rigid_alone,
        rigid_alone_s,
    )
    from coadapt.report.forecast_errors import (
        AGES,
        Calibration,
        CalibrationRow,
        Said,
        age_of,
        calibrate,
        forecasts,
        said_by_tool,
    )
    from coadapt.report.html import Run, render
    from coadapt.report.job_history import JobHistory, Progress, Stay
    from coadapt.report.lower_bound import BoundJob, LowerBound, bound_sentence
    from coadapt.report.lower_bound_jobs import Course
    from coadapt.report.operation_times import (
        OperationBar,
        largest_operations,
        operation_bars,
        operation_dict,
        operation_headline,
        operation_line,
        operation_page,
    )
    from coadapt.report.output_files import fresh_directory, fresh_file
    from coadapt.report.series import Binned, StepSeries
    from coadapt.report.summary import Column, Ratio, Summary, compare, completion_times, summarise
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "cluster_history": ("History",),
            "fairness": ("AloneTime", "fair_shares", "finish_time_fairness", "rigid_alone", "rigid_alone_s"),
            "forecast_errors": (
                "AGES",
                "Calibration",
                "CalibrationRow",
                "Said",
                "age_of",
                "calibrate",
                "forecasts",
                "said_by_tool",
            ),
            "html": ("Run", "render"),
            "job_history": ("JobHistory", "Progress", "Stay"),
            "lower_bound": ("BoundJob", "LowerBound", "bound_sentence"),
            "lower_bound_jobs": ("Course",),
            "operation_times": (
                "OperationBar",
                "largest_operations",
                "operation_bars",
                "operation_dict",
                "operation_headline",
                "operation_line",
                "operation_page",
            ),
            "output_files": ("fresh_directory", "fresh_file"),
            "series": ("Binned", "StepSeries"),
            "summary": ("Column", "Ratio", "Summary", "compare", "completion_times", "summarise"),
        },
    )

__all__ = [
    "AGES",
    "AloneTime",
    "Binned",
    "BoundJob",
    "Calibration",
    "CalibrationRow",
    "Column",
    "Course",
    "History",
    "JobHistory",
    "LowerBound",
    "OperationBar",
    "Progress",
    "Ratio",
    "Run",
    "Said",
    "Stay",
    "StepSeries",
    "Summary",
    "age_of",
    "bound_sentence",
    "calibrate",
    "compare",
    "completion_times",
    "fair_shares",
    "finish_time_fairness",
    "forecasts",
    "fresh_directory",
    "fresh_file",
    "largest_operations",
    "operation_bars",
    "operation_dict",
    "operation_headline",
    "operation_line",
    "operation_page",
    "render",
    "rigid_alone",
    "rigid_alone_s",
    "said_by_tool",
    "summarise",
]

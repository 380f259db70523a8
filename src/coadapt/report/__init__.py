"""Pure reductions of an event log: job completion times, utilisation, fairness, charts, a report.

history = History()                      # Loop(on_record=history.add), or History.of(log)
rho = finish_time_fairness(history)      # jobs with a model need the simulator's ``alone_s``
summary = summarise(history, rho=rho)
page = render([Run("pollux", history, summary, rho)], title="A week of ours")
"""

from coadapt.report.calibration import AGES, Calibration, CalibrationRow, Said, age_of, calibrate, forecasts
from coadapt.report.chrome_trace import chrome_trace
from coadapt.report.fairness import AloneTime, fair_shares, finish_time_fairness, rigid_alone, rigid_alone_s
from coadapt.report.history import History
from coadapt.report.html import render
from coadapt.report.lives import JobHistory, Progress, Stay
from coadapt.report.lower_bound import BoundJob, Course, LowerBound, bound_sentence, lower_bound
from coadapt.report.payload import Run
from coadapt.report.series import Binned, StepSeries
from coadapt.report.summary import Ratio, Summary, compare, completion_times, summarise
from coadapt.report.tables import Column

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
    "chrome_trace",
    "compare",
    "completion_times",
    "fair_shares",
    "finish_time_fairness",
    "forecasts",
    "lower_bound",
    "render",
    "rigid_alone",
    "rigid_alone_s",
    "summarise",
]

"""The read side: explanations, statuses, ETAs, forecasts and advice.

- For a job in a cluster: ``why`` and its ``Explanation``, ``Standings`` (status and ETA of every job), ``Advisor``
  (deadlines at risk).
- For any training run: ``watch_log`` and ``follow_log``, which read its log, and the ``LogForecast`` they return.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.explain.deadline_advice import Advisor
    from coadapt.explain.explanation import Explanation, why
    from coadapt.explain.history_import import Imported, RunFacts, import_history
    from coadapt.explain.job_progress import Standing, Standings
    from coadapt.explain.log_target import TargetForecast
    from coadapt.explain.log_watch import LogForecast, Told, follow_log, watch_log
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "deadline_advice": ("Advisor",),
            "explanation": ("Explanation", "why"),
            "job_progress": ("Standing", "Standings"),
            "history_import": ("Imported", "RunFacts", "import_history"),
            "log_target": ("TargetForecast",),
            "log_watch": ("LogForecast", "Told", "follow_log", "watch_log"),
        },
    )

__all__ = [
    "Advisor",
    "Explanation",
    "Imported",
    "LogForecast",
    "RunFacts",
    "Standing",
    "Standings",
    "TargetForecast",
    "Told",
    "follow_log",
    "import_history",
    "watch_log",
    "why",
]

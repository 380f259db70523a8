"""One reader for training logs of any framework: progress, totals, clocks and metrics of a run.

``formats`` holds a small class a format, ``declared`` reads totals from printed arguments, ``reader`` folds the lines of a log into the
progress of its run. Pure: callers open the files.
"""

from coadapt.prediction.training_log.reader import LogProgress, LogReader, parse, segments
from coadapt.prediction.training_log.reading import LogFormat, Reading, RecordFormat

__all__ = ["LogFormat", "LogProgress", "LogReader", "Reading", "RecordFormat", "parse", "segments"]

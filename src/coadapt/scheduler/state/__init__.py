"""The scheduler's state: folded from the log by one method, ``apply(record)``."""

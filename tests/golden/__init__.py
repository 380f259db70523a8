"""Logs and saved states of every schema version, as they were written: they must be read for ever."""

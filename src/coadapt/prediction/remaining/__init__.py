"""Remaining work, ETA, and what past jobs teach about both."""

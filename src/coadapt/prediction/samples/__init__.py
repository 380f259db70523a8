"""Predictions from a user's own samples: epoch times and metrics."""

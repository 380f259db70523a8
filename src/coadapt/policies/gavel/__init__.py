"""Gavel: time fractions by job and GPU type from an optimisation program, and rounds that follow them."""
